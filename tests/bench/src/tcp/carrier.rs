//! What carries connections: a program on the load balancer's host, or its kernel.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{poll, process::Process, product::lb::Lb, topology::path::Path};

use crate::{
    path::configurations::{PORT, VIP},
    path::router::as_router,
    path::wire::Wire,
    tcp::{config::TCP_LOOSE, way::Way},
};

/// How long a proxy may take until it listens.
const START: Duration = Duration::from_secs(10);

/// A carrier at work.
#[derive(Debug)]
pub(crate) enum Carrier<'p> {
    /// The kernel, or a program in it.
    Kernel,
    Lb(Lb<'p>),
    Proxy(Process),
}

impl<'p> Carrier<'p> {
    /// Puts it into its place in a path whose ends have their addresses, its processes on these CPUs, with a thread for
    /// each.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub(crate) fn start(way: Way, path: &'p Path, wire: &mut Wire, cpus: &[usize]) -> Result<Self> {
        let config = way.configuration(cpus.len());
        let cpus = cpus.iter().map(ToString::to_string);
        let cpus = cpus.collect::<Vec<_>>().join(",");
        match way {
            Way::Bare => {
                path.know_the_router()?;
                wire.make_bare(path)?;
                Ok(Self::Kernel)
            }
            Way::Lb
            | Way::LbCookies
            | Way::LbShared
            | Way::LbBound
            | Way::LbBoundTwo
            | Way::LbCopied
            | Way::LbHttp => {
                let bound = ["taskset", "-c", &cpus];
                Ok(Self::Lb(Lb::start_through(path, &config, &bound)?))
            }
            Way::Route => as_router(path).map(|()| Self::Kernel),
            Way::Nft | Way::Flowtable | Way::NftSynproxy => {
                as_router(path)?;
                if way == Way::NftSynproxy {
                    path.lb
                        .set_sysctl("netfilter/nf_conntrack_tcp_loose", TCP_LOOSE)?;
                }
                let file = path.write("nat.nft", &config)?;
                path.lb.run(&format!("nft -f {}", file.display()))?;
                Ok(Self::Kernel)
            }
            Way::Ipvs => {
                as_router(path)?;
                path.lb.set_sysctl("ipv4/vs/conntrack", "1")?;
                let file = path.write("nat.ipvs", &config)?;
                path.lb.run(&format!("sh {}", file.display()))?;
                Ok(Self::Kernel)
            }
            Way::Haproxy | Way::HaproxySplice | Way::HaproxyName => {
                proxy(path, &cpus, "haproxy", &["-db"], ["-f"], &config).map(Self::Proxy)
            }
            Way::Nginx | Way::NginxName => {
                let folder = path.dir().to_str().context("a folder's name")?;
                let words = ["-p", folder];
                proxy(path, &cpus, "nginx", &words, ["-c"], &config).map(Self::Proxy)
            }
        }
    }

    /// The id of its process, if it is one.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::Kernel => None,
            Self::Lb(lb) => Some(lb.id()),
            Self::Proxy(process) => Some(process.id()),
        }
    }
}

/// Starts a proxy on the load balancer's host, with an address on each side; it listens when this returns.
fn proxy(
    path: &Path,
    cpus: &str,
    program: &str,
    words: &[&str],
    file: [&str; 1],
    config: &str,
) -> Result<Process> {
    as_router(path)?;
    path.lb.set_sysctl("ipv4/ip_forward", "0")?;
    let config = path.write(&format!("{program}.conf"), config)?;
    let config = config.to_str().context("a file's name")?;
    let words = [&["-c", cpus, program], words, &file, &[config]].concat();
    let mut process = Process::start(&path.lb.path(), path.dir(), program, "taskset", &words)?;
    let listens = format!("{VIP}:{PORT} ");
    poll::until("a proxy that listens", START, || {
        ensure!(process.ended()?.is_none(), "it has ended");
        Ok(path.lb.run("ss -Hltn")?.contains(&listens).then_some(()))
    })
    .with_context(|| format!("{program}: {}", process.stderr()))?;
    Ok(process)
}

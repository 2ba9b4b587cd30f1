//! The ways that a connection can take.

use std::{path::Path, process::Command};

use anyhow::Result;
use lb_tests::{process, product::config::Keys};

use crate::{
    path::contestants::{Who, absent, lb_version, nft_takes, version},
    report::{Missing, Shown},
    tcp::{
        answer::{HELLO, LONG_HELLO, PLAIN, Speech},
        config,
    },
};

/// Where distributions have nginx's `stream`, if that is a module.
const MODULES: [&str; 2] = [
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "/usr/lib64/nginx/modules/ngx_stream_module.so",
];

/// What carries connections, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// MAC rewrite and redirect: the limit of the path.
    Bare,
    /// A service that looks at addresses, and opens a flow at each SYN.
    Lb,
    /// The same, but XDP answers SYNs by cookies.
    LbCookies,
    /// A shared VIP: the name in the hello decides, then packets pass by themselves.
    LbShared,
    /// The same, but XDP opens each connection.
    LbBound,
    /// The same with hellos of two segments.
    LbBoundTwo,
    /// As [`Self::LbShared`], but both ends differ in their TCP options, so that the process copies what they say.
    LbCopied,
    /// A shared VIP: the name in each request decides.
    LbHttp,
    Route,
    Nft,
    /// The same with a flowtable.
    Flowtable,
    /// As [`Self::Nft`], but the kernel answers SYNs by cookies.
    NftSynproxy,
    /// The kernel's load balancer, with NAT.
    Ipvs,
    Haproxy,
    HaproxySplice,
    HaproxyName,
    Nginx,
    NginxName,
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => Who::Bare.name(),
            Self::Lb => Who::Lb.name(),
            Self::LbCookies => "lb, SYN cookies",
            Self::LbShared => "lb, shared VIP",
            Self::LbBound => "lb, shared VIP, late binding",
            Self::LbBoundTwo => "lb, shared VIP, late binding, two segments",
            Self::LbCopied => "lb, shared VIP, copied",
            Self::LbHttp => "lb, HTTP",
            Self::Route => Who::Route.name(),
            Self::Nft => Who::Nft.name(),
            Self::Flowtable => Who::Flowtable.name(),
            Self::NftSynproxy => "nftables synproxy",
            Self::Ipvs => Who::Ipvs.name(),
            Self::Haproxy => "HAProxy",
            Self::HaproxySplice => "HAProxy, splice-auto",
            Self::HaproxyName => "HAProxy, SNI",
            Self::Nginx => "nginx",
            Self::NginxName => "nginx, ssl_preread",
        }
    }

    /// Why it cannot be taken here, if it cannot.
    pub(crate) fn missing(self) -> Option<Missing> {
        let why = match self {
            Self::Bare | Self::Route => None,
            Self::Lb | Self::LbShared | Self::LbBound | Self::LbBoundTwo => None,
            Self::LbCookies | Self::LbCopied | Self::LbHttp => None,
            Self::Nft => return Who::Nft.missing(),
            Self::Flowtable => return Who::Flowtable.missing(),
            Self::NftSynproxy => absent("nft").or_else(|| {
                let takes = nft_takes(&config::synproxy());
                (!takes).then(|| "this kernel takes no synproxy (NFT_SYNPROXY)".to_owned())
            }),
            Self::Ipvs => return Who::Ipvs.missing(),
            Self::Haproxy | Self::HaproxySplice | Self::HaproxyName => absent("haproxy"),
            Self::Nginx | Self::NginxName => absent("nginx").or_else(no_stream),
        };
        why.map(|why| Missing {
            name: self.name(),
            why,
        })
    }

    /// How it is set up, to be read.
    ///
    /// # Errors
    ///
    /// When the program does not say which version it is.
    pub(crate) fn shown(self) -> Result<Shown> {
        let version = match self {
            Self::Bare => return Who::Bare.shown(),
            Self::Route => return Who::Route.shown(),
            Self::Lb | Self::LbShared | Self::LbBound | Self::LbBoundTwo => lb_version()?,
            Self::LbCookies | Self::LbCopied | Self::LbHttp => lb_version()?,
            Self::Nft | Self::Flowtable | Self::NftSynproxy => version("nft", &["--version"])?,
            Self::Ipvs => version("ipvsadm", &["--version"])?,
            Self::Haproxy | Self::HaproxySplice | Self::HaproxyName => version("haproxy", &["-v"])?,
            Self::Nginx | Self::NginxName => version("nginx", &["-v"])?,
        };
        Ok(Shown {
            name: self.name(),
            version,
            configuration: self.configuration(1),
        })
    }

    /// What its program reads, which is to have so many threads; nothing where there is none.
    pub(crate) fn configuration(self, threads: usize) -> String {
        match self {
            Self::Bare | Self::Route => String::new(),
            Self::Lb => config::lb_by_address("never").to_string(),
            Self::LbCookies => config::lb_by_address("always").to_string(),
            Self::LbShared | Self::LbCopied => {
                let config = config::lb(Some("sni"));
                let accepted = |service: Keys| service.set("sni.late_binding", "never");
                config.service("shared", accepted).to_string()
            }
            Self::LbBound | Self::LbBoundTwo => config::lb(Some("sni")).to_string(),
            Self::LbHttp => config::lb(Some("http")).to_string(),
            Self::Nft => config::nft(false),
            Self::Flowtable => config::nft(true),
            Self::NftSynproxy => config::synproxy(),
            Self::Ipvs => config::ipvs(),
            Self::Haproxy => config::haproxy(false, false, threads),
            Self::HaproxySplice => config::haproxy(true, false, threads),
            Self::HaproxyName => config::haproxy(false, true, threads),
            Self::Nginx => config::nginx(&module(), false),
            Self::NginxName => config::nginx(&module(), true),
        }
    }

    /// Whether both ends are made to differ in their TCP options, so that nothing is handed over.
    pub(crate) const fn is_copied(self) -> bool {
        matches!(self, Self::LbCopied)
    }

    /// What its clients say.
    pub(crate) const fn speech(self) -> Speech {
        match self {
            Self::LbHttp => Speech::Http,
            Self::LbShared
            | Self::LbBound
            | Self::LbCopied
            | Self::HaproxyName
            | Self::NginxName => HELLO,
            Self::LbBoundTwo => LONG_HELLO,
            _ => PLAIN,
        }
    }

    /// Whether clients connect to the VIP, and not to backends.
    pub(crate) const fn has_vip(self) -> bool {
        !matches!(self, Self::Bare | Self::Route)
    }
}

/// Which of these can be taken here, and why the others cannot.
pub(crate) fn present(ways: &[Way]) -> (Vec<Way>, Vec<Missing>) {
    let there = ways.iter().copied().filter(|way| way.missing().is_none());
    let missing = ways.iter().filter_map(|way| way.missing());
    (there.collect(), missing.collect())
}

/// The line that loads nginx's `stream`, if it needs one.
fn module() -> String {
    let file = MODULES.into_iter().find(|file| Path::new(file).exists());
    file.map_or_else(String::new, |file| format!("load_module {file};\n"))
}

fn no_stream() -> Option<String> {
    if !module().is_empty() {
        return None;
    }
    let output = process::finish(Command::new("nginx").arg("-V")).ok()?;
    let built = String::from_utf8_lossy(&output.stderr);
    let has_it = built.split_whitespace().any(|word| word == "--with-stream");
    (!has_it).then(|| "this nginx has no stream".to_owned())
}

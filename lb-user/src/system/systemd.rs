//! The supervisor of this process, such as systemd, if it has one (`sd_notify(3)`): it gets the state of the
//! process, starts it again when it dies or hangs, and keeps the listeners of shared VIPs meanwhile, so that
//! clients wait and are not refused.

use std::{
    env, fs,
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    process,
    time::{Duration, Instant},
};

use listenfd::ListenFd;
use sd_notify::NotifyState;

/// The longest time between two signs of life. A process that has taken over does not get its supervisor's
/// watchdog interval, so it keeps to this one.
const BEAT: Duration = Duration::from_secs(1);

/// The most characters of a status in words: a supervisor takes no message of more than 4096 bytes.
const MAX_STATUS: usize = 500;

/// Notifies the supervisor that this process is ready, and is the one to be watched from now on, whichever
/// was it until now.
pub fn is_ready(words: &str) {
    tell(&[
        NotifyState::Ready,
        NotifyState::MainPid(process::id()),
        NotifyState::Status(&line(words)),
        NotifyState::Watchdog,
    ]);
}

/// Whether this process has one.
pub fn is_there() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// The unit that this process is in the control group of, if it has a supervisor.
pub fn unit() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    unit_of(&groups).filter(|_| is_there())
}

/// The unit of a process with these control groups, as `/proc/PID/cgroup` has them.
fn unit_of(groups: &str) -> Option<String> {
    let mut paths = groups.lines().filter_map(|line| line.rsplit_once('/'));
    let unit = paths.find(|(_, name)| name.ends_with(".service"));
    unit.map(|(_, name)| name.to_owned())
}

/// Gives a sign of life.
pub fn is_alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Whether this process has a supervisor, and another one is none of its: it takes notifications only from
/// those in the control group. Of a process that cannot be looked at nothing is known; one that is nowhere to
/// be seen is in another group.
pub fn is_others(pid: Option<i32>) -> bool {
    if !is_there() {
        return false;
    }
    let Some(pid) = pid.filter(|pid| *pid > 0) else {
        return true;
    };
    let group = |process: &str| fs::read(format!("/proc/{process}/cgroup")).ok();
    match (group("self"), group(&pid.to_string())) {
        (Some(own), Some(other)) => own != other,
        _ => false,
    }
}

/// Notifies the supervisor that this process ends because it was requested to.
pub fn stops() {
    tell(&[NotifyState::Stopping]);
}

/// Words as a supervisor takes them: what is on a line of its own would mean something else.
fn line(words: &str) -> String {
    let line = words.replace(char::is_control, " ");
    line.chars().take(MAX_STATUS).collect()
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(
            "notify the supervisor ($NOTIFY_SOCKET) of the state of this process: {error}; it may take the process \
             for dead, and restart it"
        );
    }
}

/// Has a listener kept until it is [forgotten](forget).
pub fn keep(place: &ListenerKey, listener: impl AsFd) {
    let name = name(place);
    let states = [NotifyState::FdStore, NotifyState::FdName(&name)];
    let kept = sd_notify::notify_with_fds(&states, &[listener.as_fd()]);
    if let Err(error) = kept {
        tracing::warn!(
            "leave the listener {name} with the supervisor: {error}; after a crash it is opened anew"
        );
    }
}

/// Has a listener kept no longer.
pub fn forget(place: &ListenerKey) {
    forget_name(&name(place));
}

fn forget_name(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// The listeners that were kept from an earlier process. Only the first call gets them, which must come
/// before there is a second thread.
pub fn kept() -> Vec<(ListenerKey, OwnedFd)> {
    // Those for a process that is not this one are none.
    let names = match sd_notify::listen_fds_with_names() {
        Ok(names) => names.map(|(_, name)| name).collect::<Vec<_>>(),
        Err(error) => {
            tracing::error!(
                "take the listeners that the supervisor has kept: {error}; they are opened anew"
            );
            return Vec::new();
        }
    };
    if names.is_empty() {
        return Vec::new();
    }
    let mut descriptors = ListenFd::from_env();
    let mut kept = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        match (place(&name), descriptors.take_tcp_listener(number)) {
            (Some(place), Ok(Some(listener))) => kept.push((place, listener.into())),
            _ => {
                tracing::error!(
                    "the supervisor has kept {name}, which is no TCP listener of a VIP: it is let go"
                );
                forget_name(&name);
            }
        }
    }
    kept
}

/// What a listener is kept as: `NETWORK/VIP/PORT`, at most 85 characters, none of them a colon.
fn name((network, vip): &ListenerKey) -> String {
    format!("{network}/{}/{}", vip.ip(), vip.port())
}

fn place(name: &str) -> Option<ListenerKey> {
    let mut parts = name.split('/');
    let (network, ip, port) = (parts.next()?, parts.next()?, parts.next()?);
    let vip = SocketAddrV4::new(ip.parse().ok()?, port.parse().ok()?);
    (parts.next().is_none() && !network.is_empty()).then(|| (network.to_owned(), vip))
}

/// What the supervisor gets as long as all is well.
#[derive(Debug)]
pub struct Account {
    words: String,
    next: Instant,
    /// How long between two signs of life; none: there is no supervisor.
    every: Option<Duration>,
}

impl Account {
    /// Begins with the status that it got last.
    pub fn new(words: String) -> Self {
        let wanted = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let is_supervised = is_there();
        Self {
            words,
            next: Instant::now(),
            every: is_supervised.then(|| wanted.map_or(BEAT, |wanted| wanted.min(BEAT))),
        }
    }

    /// Gives a sign of life if one is due, and with it the status of the process if that has changed.
    pub fn go_on(&mut self, words: impl FnOnce() -> String) {
        let Some(every) = self.every else {
            return;
        };
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + every;
        is_alive();
        let words = words();
        if words != self.words {
            tell(&[NotifyState::Status(&line(&words))]);
            self.words = words;
        }
    }
}

/// Where a listener is: the name of a network, and the VIP and port there.
pub type ListenerKey = (String, SocketAddrV4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_last_part_of_a_control_group() {
        assert_eq!(
            unit_of("0::/system.slice/lb.service\n"),
            Some("lb.service".to_owned())
        );
        let first = "12:pids:/system.slice/lb@a.service\n0::/user.slice/session-1.scope\n";
        assert_eq!(unit_of(first), Some("lb@a.service".to_owned()));
        assert_eq!(unit_of("0::/user.slice/session-1.scope\n"), None);
        assert_eq!(unit_of(""), None);
    }

    #[test]
    fn a_name_leads_to_its_place() {
        let vip = SocketAddrV4::new([192, 168, 203, 110].into(), 443);
        let here = ("tenant-a".to_owned(), vip);
        assert_eq!(name(&here), "tenant-a/192.168.203.110/443");
        assert_eq!(place(&name(&here)), Some(here));
    }

    #[test]
    fn what_is_no_name_leads_nowhere() {
        for name in [
            "",
            "unknown",
            "stored",
            "/10.0.0.1/1",
            "a/10.0.0.1",
            "a/10.0.0.1/65536",
            "a/10.0.0/1",
            "a/10.0.0.1/1/",
            "a/b/10.0.0.1/1",
        ] {
            assert_eq!(place(name), None, "{name}");
        }
    }

    #[test]
    fn words_are_one_line_and_not_too_many() {
        assert_eq!(line("a\nMAINPID=1\tb"), "a MAINPID=1 b");
        assert_eq!(line(&"ä".repeat(5000)).len(), 1000);
    }

    #[test]
    fn the_longest_name_is_one() {
        let network = "n".repeat(63);
        let vip = SocketAddrV4::new([255; 4].into(), u16::MAX);
        assert_eq!(name(&(network, vip)).len(), 85);
    }
}

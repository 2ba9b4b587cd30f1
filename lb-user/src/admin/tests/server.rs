use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::net::UnixStream as TokioStream;

use super::stage::{Stage, TEST_TIMEOUT, echoed, post, reply, rest};
use crate::{
    admin::{
        read_group::ReadGroup,
        server::{self, Access, AdminTimeouts, Peer, Server},
    },
    api::{Answer, Filter, Override, Request},
};

#[test]
fn every_request_arrives_as_it_was_sent_with_who_sent_it() {
    let (sender, orders) = mpsc::channel();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        sender.send((order.request.clone(), order.by)).unwrap();
        reply(order, echoed);
    });
    let me = Peer {
        uid: nix::unistd::geteuid().as_raw(),
        pid: Some(nix::unistd::getpid().as_raw()),
        access: Access::All,
    };
    for request in [
        Request::Plan {
            file: PathBuf::from("/etc/lb/lb.yaml"),
        },
        Request::Reload {
            file: None,
            confirm_seconds: Some(30),
        },
        Request::Confirm,
        Request::Health,
        Request::Backend {
            name: "p/a".to_owned(),
            change: Override::Weight { weight: 3 },
        },
        Request::Kill(Filter {
            all: true,
            ..Filter::default()
        }),
        Request::Events { after: u64::MAX },
    ] {
        assert_eq!(stage.ask(&request).unwrap(), echoed(&request));
        assert_eq!(orders.try_recv(), Ok((request, me)));
    }
}

#[test]
fn the_socket_is_for_one_user_and_gone_at_the_end() {
    let mut stage = Stage::echo(AdminTimeouts::default());
    let metadata = fs::symlink_metadata(stage.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    let names = fs::read_dir(stage.folder.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["lb.sock"]);
    stage.stop();
    assert!(!stage.socket().exists());
}

#[test]
fn a_socket_of_a_dead_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/lb.sock");
    fs::create_dir_all(path.with_file_name("lb.sock.new").join("half")).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    let refused = UnixStream::connect(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let server = Server::open(&path, ReadGroup::default()).unwrap();
    UnixStream::connect(&path).unwrap();
    assert!(!path.with_file_name("lb.sock.new").exists());
    // That of the next process stays.
    let next = Server::open(&path, ReadGroup::default()).unwrap();
    drop(server);
    UnixStream::connect(&path).unwrap();
    drop(next);
    assert!(!path.exists());
}

#[test]
fn a_path_that_cannot_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Server::open(&file.join("lb.sock"), ReadGroup::default()).unwrap_err();
    assert!(format!("{error:#}").contains("file/lb.sock"), "{error:#}");
    let long = folder.path().join("x".repeat(120));
    assert!(Server::open(&long, ReadGroup::default()).is_err());
}

#[test]
fn root_and_the_own_user_may_all_and_members_of_the_group_may_look() {
    let of = |uid, own, group| Access::of(uid, own, &[5, 7], group);
    for group in [None, Some(5), Some(6)] {
        assert_eq!(of(0, 1000, group), Access::All);
        assert_eq!(of(1000, 1000, group), Access::All);
    }
    assert_eq!(of(1000, 0, None), Access::None);
    assert_eq!(of(1001, 1000, Some(6)), Access::None);
    assert_eq!(of(1001, 1000, Some(7)), Access::Read);
    let peer = |pid| Peer {
        uid: 7,
        pid,
        access: Access::Read,
    };
    assert_eq!(peer(None).to_string(), "uid 7");
    assert_eq!(peer(Some(9)).to_string(), "uid 7, process 9");
}

/// What a peer with this access gets for a request, and whether the control loop had it.
fn answered(access: Access, body: &str) -> (String, bool) {
    let other = Peer {
        uid: nix::unistd::geteuid().as_raw() + 1,
        pid: Some(9),
        access,
    };
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    theirs.set_nonblocking(true).unwrap();
    io::Write::write_all(&mut &ours, &post(body)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let is_had = runtime.block_on(async {
        let (sender, mut orders) = tokio::sync::mpsc::channel(1);
        let stream = TokioStream::from_std(theirs).unwrap();
        let times = AdminTimeouts::default();
        let served = server::converse(stream, other, Arc::default(), sender, times);
        let control = async {
            let order = orders.recv().await;
            let is_had = order.is_some();
            order.into_iter().for_each(|order| reply(order, echoed));
            is_had
        };
        tokio::join!(served, control).1
    });
    (rest(ours), is_had)
}

#[test]
fn a_stranger_is_refused() {
    let (said, is_had) = answered(Access::None, r#"{"command":"health"}"#);
    assert!(said.starts_with("HTTP/1.1 403 ") && !is_had, "{said}");
    let words =
        "may not use the admin socket: only root, lb's own user and members of admin.group may\n";
    assert!(said.ends_with(words), "{said}");
}

#[test]
fn a_member_of_the_group_may_look_and_change_nothing() {
    for look in [
        r#"{"command":"health"}"#,
        r#"{"command":"events","after":0}"#,
        r#"{"command":"legs"}"#,
        r#"{"command":"plan","file":"/etc/lb/lb.yaml"}"#,
    ] {
        let (said, is_had) = answered(Access::Read, look);
        assert!(
            said.starts_with("HTTP/1.1 200 ") && is_had,
            "{look}: {said}"
        );
    }
    for order in [
        r#"{"command":"kill","all":true}"#,
        r#"{"command":"reload","file":null,"confirm_seconds":null}"#,
        r#"{"command":"confirm"}"#,
        r#"{"command":"backend","name":"p/a","change":{"override":"drain"}}"#,
        r#"{"command":"node","name":"a","change":{"override":"disable"}}"#,
    ] {
        let (said, is_had) = answered(Access::Read, order);
        assert!(!is_had, "{order}: {said}");
        assert!(
            said.contains("may only look, as a member of admin.group"),
            "{said}"
        );
    }
}

#[test]
fn no_more_than_sixteen_are_served_at_a_time() {
    const AT_A_TIME: usize = 16;
    let (sender, orders) = mpsc::channel();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        sender.send(order).unwrap()
    });
    let mut streams: Vec<UnixStream> = (0..AT_A_TIME + 4)
        .map(|_| {
            let stream = stage.connect();
            io::Write::write_all(&mut &stream, &post(r#"{"command":"confirm"}"#)).unwrap();
            stream
        })
        .collect();
    let mut waiting: Vec<_> = (0..AT_A_TIME)
        .map(|_| orders.recv_timeout(TEST_TIMEOUT).unwrap())
        .collect();
    let one_more = orders.recv_timeout(Duration::from_millis(200));
    assert!(one_more.is_err(), "a seventeenth");
    // One that is done makes room for another.
    reply(waiting.remove(0), echoed);
    waiting.push(orders.recv_timeout(TEST_TIMEOUT).unwrap());
    waiting.into_iter().for_each(|order| reply(order, echoed));
    for _ in 0..3 {
        reply(orders.recv_timeout(TEST_TIMEOUT).unwrap(), echoed);
    }
    for stream in streams.drain(..) {
        let said = rest(stream);
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    }
}

#[test]
fn who_waits_too_long_is_told_so() {
    let times = AdminTimeouts {
        answer: Duration::from_millis(100),
        ..AdminTimeouts::default()
    };
    let mut kept = Vec::new();
    let mut stage = Stage::start(times, move |order| kept.push(order));
    let said = stage.exchange(&post(r#"{"command":"health"}"#));
    assert!(said.starts_with("HTTP/1.1 504 "), "{said}");
    assert!(
        said.ends_with("the request may still be carried out\n"),
        "{said}"
    );
    stage.stop();
}

#[test]
fn an_order_that_is_dropped_is_said_to_be() {
    let stage = Stage::start(AdminTimeouts::default(), drop);
    let said = stage.exchange(&post(r#"{"command":"health"}"#));
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    let refused = stage.ask(&Request::Confirm).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the control plane says: the control plane is ending"
    );
}

#[test]
fn what_can_mean_nothing_is_no_order() {
    let stage = Stage::start(AdminTimeouts::default(), |order| panic!("{order:?}"));
    assert_eq!(
        stage
            .ask(&Request::Reload {
                file: Some(PathBuf::from("lb.yaml")),
                confirm_seconds: None
            })
            .unwrap(),
        Answer::Refused {
            usage: true,
            reasons: vec!["lb.yaml: the path is not absolute".to_owned()],
        }
    );
}

//! A service that is routed by the Host of each request beside HAProxy and nginx, on the same bytes in front of the
//! same backend: what each answers, and what the backend is asked.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{config::Config, lb::Lb},
    topology::{Host, Topology},
    traffic::client::open,
};

use crate::proxy::{
    hosts::{PORT, SHARED},
    oracle_http_cases::{Case, all},
};

/// Where the other two listen.
const BESIDE: u16 = 80;
const SOON: Duration = Duration::from_secs(10);

/// A request, whatever it is, has the answer that is listed for each, and asks the backend what is listed there.
#[privileged_test]
fn answers_are_those_of_haproxy_and_nginx_or_listed() -> Result<()> {
    let topology = Topology::poc()?;
    let [backend, _, at_nginx, at_haproxy] = &topology.nodes[..] else {
        anyhow::bail!("there are four nodes");
    };
    let asked = SocketAddrV4::new(backend.address, PORT);
    listen(backend, asked)?;
    let _haproxy = haproxy(&topology, at_haproxy, asked)?;
    let _nginx = nginx(&topology, at_nginx, asked)?;
    let _lb = Lb::start(&topology, &config(asked))?;
    let mut wrong = Vec::new();
    for case in all() {
        let expected = [case.ours, case.haproxy, case.nginx];
        let all = [
            ("lb", topology.client(), SHARED),
            ("HAProxy", at_haproxy, beside(at_haproxy)),
            ("nginx", at_nginx, beside(at_nginx)),
        ];
        for ((name, from, to), expected) in all.into_iter().zip(expected) {
            let said = ask(from, to, &case).with_context(|| format!("{name}: {}", case.what))?;
            if said != expected {
                wrong.push(format!("{}: {name} {said:?}, not {expected:?}", case.what));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

const fn beside(host: &Host) -> SocketAddrV4 {
    SocketAddrV4::new(host.address, BESIDE)
}

/// What a client hears: the status, and behind it what the backend was asked if that is the answer's body.
fn ask(from: &Host, to: SocketAddrV4, case: &Case) -> Result<String> {
    let mut stream = from.netns.inside(|| open(None, to))??;
    stream.set_read_timeout(Some(SOON))?;
    let mut answer = Vec::new();
    // A client that is refused early may be cut off.
    let _refused = stream.write_all(&case.request);
    let _torn = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    let Some(rest) = text.strip_prefix("HTTP/1.1 ") else {
        return Ok(if answer.is_empty() { "" } else { "no HTTP/1" }.to_owned());
    };
    let status = rest.split(' ').next().unwrap_or_default();
    let body = rest.rsplit("\r\n\r\n").next().unwrap_or_default();
    Ok(match status {
        "200" => format!("200 {body}"),
        status => status.to_owned(),
    })
}

/// A backend that answers with the beginning of the head that it was asked, once it has all of the body.
fn listen(host: &Host, at: SocketAddrV4) -> Result<()> {
    let listener = host.netns.inside(|| TcpListener::bind(at))??;
    // Both end with the test's process.
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // The client's business to report.
            thread::spawn(move || drop(serve(&stream)));
        }
    });
    Ok(())
}

fn serve(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(SOON))?;
    let mut requests = BufReader::new(stream);
    loop {
        let (mut first, mut chunked, mut length) = (String::new(), String::new(), 0);
        requests.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                _ if line.is_empty() => break,
                Some(("content-length", bytes)) => length = bytes.parse()?,
                Some(("transfer-encoding", coding)) => chunked = format!(" {coding}"),
                _ => {}
            }
        }
        if chunked.is_empty() {
            requests.read_exact(&mut vec![0; length])?;
        } else {
            let mut line = String::new();
            while line != "0\r\n" {
                line.clear();
                ensure!(requests.read_line(&mut line)? > 0, "a body without an end");
            }
            requests.read_line(&mut line)?;
        }
        let said = format!("{}{chunked}", first.trim_end());
        let length = said.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{said}");
        (&mut &*stream).write_all(answer.as_bytes())?;
    }
}

fn haproxy(topology: &Topology, host: &Host, asked: SocketAddrV4) -> Result<Process> {
    let text = format!(
        "defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend all
  bind {}
  default_backend all
backend all
  server one {asked}
",
        beside(host)
    );
    let file = topology.write("haproxy.cfg", &text)?;
    let file = file.to_str().context("a path")?;
    start(topology, host, "haproxy", &["-db", "-f", file])
}

fn nginx(topology: &Topology, host: &Host, asked: SocketAddrV4) -> Result<Process> {
    let text = format!(
        "daemon off; master_process off; user root; pid nginx.pid; error_log stderr crit; events {{}}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{
    listen {};
    location / {{ proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_pass http://{asked}; }}
  }}
}}
",
        beside(host)
    );
    let file = topology.write("nginx.conf", &text)?;
    let (file, prefix) = (file.to_string_lossy(), topology.dir().to_string_lossy());
    let words = ["-p", &*prefix, "-e", "stderr", "-c", &*file];
    start(topology, host, "nginx", &words)
}

fn start(topology: &Topology, host: &Host, program: &str, words: &[&str]) -> Result<Process> {
    let process = Process::start(&host.netns.path(), topology.dir(), program, program, words)?;
    let listens = || {
        let sockets = host.netns.run("ss -Hltn")?;
        Ok(sockets
            .contains(&format!("{} ", beside(host)))
            .then_some(()))
    };
    poll::until("the other one listens", SOON, listens).with_context(|| process.stderr())?;
    Ok(process)
}

fn config(asked: SocketAddrV4) -> Config {
    Config::poc()
        .mgmt_pool("b", [asked])
        .service("shared", |shared| {
            let shared = shared.on("tenant-a").tcp(SHARED);
            shared.with("http: { routes: [{ names: [b.test], pool: b }] }")
        })
}

//! Answers of APIs, of versions of Kubernetes that are not at hand as well, as they were recorded or as they are allowed to be.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{Read as _, Write as _},
    sync::{Mutex, PoisonError},
};

use hyper::{Request, Response};
use kube::client::{Body, ClientBuilder};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    super::{
        bounded::{self, MAX_LINE_BYTES},
        kubeconfig,
    },
    *,
};

/// What the API answers to one request after the other, and nothing after the last one.
#[derive(Clone)]
struct Api {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    /// The queries of the requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Api {
    fn answering(answers: impl IntoIterator<Item = (u16, String)>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            asked: Arc::default(),
        }
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        lock(&self.asked).push(query);
        let next = lock(&self.answers).pop_front();
        let Some((status, text)) = next else {
            return future::pending().await;
        };
        let response = Response::builder().status(status);
        Ok(response.body(Body::from(text.into_bytes())).unwrap())
    }

    /// What is known of the nodes when all answers were taken in, how often that was news, and the error that is left.
    async fn followed(&self) -> (Vec<String>, usize, Option<String>) {
        let api = self.clone();
        let service = tower::service_fn(move |request| api.clone().answer(request));
        let client = bounded::client(ClientBuilder::new(service, "default"));
        let (view, mut seen) = watch::channel(ClusterView::default());
        // The other kinds are there, and empty.
        view.send_modify(|view| {
            view.replace::<Services>(BTreeMap::new());
            view.replace::<EndpointSlices>(BTreeMap::new());
        });
        seen.mark_unchanged();
        let (_, may_write) = watch::channel(false);
        let sink = Sink {
            view: Arc::new(view),
            wake: Arc::default(),
            may_write,
        };
        let follow = Follow {
            client: &client,
            sink: &sink,
            has_others: false,
        };
        let mut news = 0;
        let counted = async {
            loop {
                seen.changed().await.unwrap();
                seen.borrow_and_update();
                news += 1;
            }
        };
        let all = async {
            while !lock(&self.answers).is_empty() {
                time::sleep(Duration::from_millis(5)).await;
            }
            time::sleep(Duration::from_millis(50)).await;
        };
        let ended = async {
            tokio::select! {
                () = follow.kind::<Nodes>(Nodes::RESOURCE.resource(), |_| {}) => {}
                () = counted => {}
                () = all => {}
            }
        };
        timeout(Duration::from_secs(20), ended).await.unwrap();
        let view = sink.view.borrow();
        let nodes = view
            .known()
            .map(|known| known.nodes.keys().cloned().collect());
        let trouble = view.trouble().map(|trouble| trouble.words.clone());
        (nodes.unwrap_or_default(), news, trouble)
    }
}

fn lock<T>(all: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node(name: &str, version: u32, ready: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "resourceVersion": version.to_string() },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    })
}

fn list(names: &[&str]) -> (u16, String) {
    let items: Vec<Value> = names.iter().map(|name| node(name, 1, "True")).collect();
    let list = json!({
        "apiVersion": "v1",
        "kind": "NodeList",
        "metadata": { "resourceVersion": "9" },
        "items": items,
    });
    (200, list.to_string())
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

fn stream(events: &[String]) -> (u16, String) {
    (200, events.concat())
}

fn status(code: u16, reason: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": format!("{reason} it is"),
        "reason": reason,
        "code": code,
    })
}

/// Asks until all answers are given: what is known.
async fn known_after(answers: impl IntoIterator<Item = (u16, String)>) -> Vec<String> {
    Api::answering(answers).followed().await.0
}

#[tokio::test]
async fn a_stream_changes_what_it_names() {
    let changes = stream(&[
        event("ADDED", &node("n3", 10, "True")),
        event("DELETED", &node("n1", 11, "True")),
    ]);
    assert_eq!(
        known_after([list(&["n1", "n2"]), changes]).await,
        ["n2", "n3"]
    );
}

#[tokio::test]
async fn bookmarks_and_duplicates_are_no_news() {
    let bookmark = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "resourceVersion": "20", "creationTimestamp": null },
    });
    let changes = stream(&[
        event("BOOKMARK", &bookmark),
        event("MODIFIED", &node("n1", 1, "True")),
        event("MODIFIED", &node("n1", 1, "True")),
        event("ADDED", &node("n1", 1, "True")),
    ]);
    let (nodes, news, trouble) = Api::answering([list(&["n1"]), changes]).followed().await;
    assert_eq!((nodes, news, trouble), (vec!["n1".to_owned()], 1, None));
}

/// What a bookmark names is where a stream goes on.
#[tokio::test]
async fn a_stream_that_ends_goes_on_at_its_bookmark() {
    let bookmark =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "resourceVersion": "20" } });
    let next = stream(&[event("ADDED", &node("n2", 21, "True"))]);
    let api = Api::answering([list(&["n1"]), stream(&[event("BOOKMARK", &bookmark)]), next]);
    assert_eq!(api.followed().await.0, ["n1", "n2"]);
    let asked = lock(&api.asked);
    let versions = ["resourceVersion=9", "resourceVersion=20"];
    for (asked, version) in asked[1..].iter().zip(versions) {
        assert!(
            asked.contains("watch=true") && asked.contains(version),
            "{asked}"
        );
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_in_the_middle_of_an_object_changes_nothing_with_that() {
    let whole = event("ADDED", &node("n2", 10, "True"));
    let cut = event("DELETED", &node("n1", 11, "True"));
    let (half, _) = cut.split_at(cut.len() / 2);
    let answers = [list(&["n1"]), (200, whole + half), stream(&[])];
    assert_eq!(known_after(answers).await, ["n1", "n2"]);
}

/// A removal that the stream did not have is in the next list, and nothing goes before that is whole.
#[tokio::test]
async fn a_version_that_is_gone_is_listed_anew_at_once() {
    let gone = stream(&[event("ERROR", &status(410, "Expired"))]);
    let (_, whole) = list(&["n3"]);
    let (half, _) = whole.split_at(60);
    let answers = [list(&["n1", "n2"]), gone.clone(), (200, half.to_owned())];
    assert_eq!(known_after(answers).await, ["n1", "n2"]);
    let api = Api::answering([list(&["n1", "n2"]), gone, list(&["n2", "n3"])]);
    let begun = std::time::Instant::now();
    let (nodes, _, trouble) = api.followed().await;
    assert_eq!(
        (nodes.as_slice(), trouble),
        (&["n2".to_owned(), "n3".to_owned()][..], None)
    );
    assert!(begun.elapsed() < RETRY_INTERVAL, "{:?}", begun.elapsed());
}

/// An older state of an object after a newer one, and the end of what is not known.
#[tokio::test]
async fn what_is_out_of_order_is_mended_by_the_next_list() {
    let changes = stream(&[
        event("DELETED", &node("n7", 10, "True")),
        event("ADDED", &node("n8", 12, "True")),
        event("DELETED", &node("n8", 12, "True")),
        event("MODIFIED", &node("n8", 11, "True")),
        event("ERROR", &status(410, "Gone")),
    ]);
    assert_eq!(
        known_after([list(&["n1"]), changes, list(&["n1"])]).await,
        ["n1"]
    );
}

#[tokio::test]
async fn no_error_removes_anything() {
    for (code, reason) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ] {
        let error = (code, status(code, reason).to_string());
        let in_stream = stream(&[event("ERROR", &status(code, reason))]);
        for answer in [error, in_stream, (code, "no JSON".to_owned())] {
            let api = Api::answering([list(&["n1"]), answer]);
            let (nodes, _, trouble) = api.followed().await;
            assert_eq!(nodes, ["n1"], "{code}");
            let trouble = trouble.unwrap();
            assert!(trouble.contains(&code.to_string()), "{trouble}");
        }
    }
}

/// More than there may be are not taken, and what was known stays.
#[tokio::test]
async fn too_many_objects_are_an_error() {
    let names: Vec<String> = (0..=MAX_OBJECTS).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let gone = || stream(&[event("ERROR", &status(410, "Expired"))]);
    let api = Api::answering([list(&["n1"]), gone(), list(&names)]);
    let (nodes, _, trouble) = api.followed().await;
    assert_eq!(
        (nodes, trouble),
        (vec!["n1".to_owned()], Some(too_many("Nodes")))
    );
    let api = Api::answering([
        list(&names[1..]),
        stream(&[event("ADDED", &node("more", 2, "True"))]),
    ]);
    let (nodes, _, trouble) = api.followed().await;
    assert_eq!(
        (nodes.len(), trouble),
        (MAX_OBJECTS, Some(too_many("Nodes")))
    );
}

/// What an API could send without end is cut off, and what was known stays: a list, an event, an error.
#[tokio::test]
async fn too_large_an_answer_is_an_error() {
    let (_, whole) = list(&["n2"]);
    let newlines = "\n".repeat(MAX_LINE_BYTES);
    let gone = || stream(&[event("ERROR", &status(410, "Expired"))]);
    let added = event("ADDED", &node("n2", 10, "True"));
    let spaces = " ".repeat(MAX_LINE_BYTES);
    for answers in [
        vec![gone(), (200, newlines.clone() + &whole)],
        vec![(200, spaces + &added)],
        vec![(500, newlines)],
    ] {
        let api = Api::answering([vec![list(&["n1"])], answers].concat());
        let (nodes, _, trouble) = api.followed().await;
        assert_eq!(
            (nodes, trouble),
            (vec!["n1".to_owned()], Some(bounded::too_large()))
        );
    }
}

/// The client that is made of a kubeconfig has the bound.
#[tokio::test]
async fn too_large_an_answer_of_the_api_of_a_kubeconfig_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read_exact(&mut [0; 16]).unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // Twice as much as is read.
        let mut sent = 0..MAX_LINE_BYTES >> 15;
        while sent.next().is_some() && client.write_all(&[b'\n'; 1 << 16]).is_ok() {}
    });
    let file = kubeconfig::tests::file_of(&server);
    let connected = connect(
        &mut KubeconfigSource::File(file.path().to_owned()),
        None,
        &mut WatchedFiles::default(),
    )
    .await;
    assert_eq!(words(&connected.err().unwrap()), bounded::too_large());
}

/// An API may say much; a line of it is shown.
#[tokio::test]
async fn much_of_an_error_is_cut() {
    let much = "\u{e4}".repeat(10_000);
    let error = stream(&[event("ERROR", &status(500, &much))]);
    let (_, _, trouble) = Api::answering([list(&["n1"]), error]).followed().await;
    let trouble = trouble.unwrap();
    assert_eq!(trouble.chars().count(), MAX_WORDS + 3);
    assert!(trouble.ends_with("\u{e4}..."), "{trouble}");
}

use std::{io::ErrorKind, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use selvage_balancer::{Limits, Options, Port, Protocol};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{common::*, tls::Tls};

/// Answers with what it saw: version, method, path, headers, body.
async fn mirror(name: &'static str) -> Running {
    target(move |stream| async move {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let (parts, body) = request.into_parts();
            let mut text = format!("{name} {:?} {} {}\n", parts.version, parts.method, parts.uri);
            for (name, value) in &parts.headers {
                text += &format!("{name}: {}\n", value.to_str().unwrap());
            }
            let body = body.collect().await?.to_bytes();
            let text = [text.as_bytes(), b"\n", &body].concat();
            let response = Response::builder()
                .header("x-own", "yes")
                .header("keep-alive", "timeout=1")
                .header("connection", "x-hop")
                .header("x-hop", "1");
            Ok::<_, hyper::Error>(response.body(Full::new(Bytes::from(text))).unwrap())
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

async fn raw(bed: &Bed, port: u16, request: &str) -> String {
    let mut stream = bed.connect(port).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    String::from_utf8(read_all(&mut stream).await.unwrap()).unwrap()
}

async fn get(bed: &Bed, path: &str) -> String {
    raw(bed, 80, &format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\r\n"))
        .await
}

#[tokio::test]
async fn the_longest_prefix_finds_the_service() {
    let bed = Bed::new();
    let (one, two, root) = (mirror("one").await, mirror("two").await, mirror("root").await);
    bed.publish("one", vec![prefixed(80, "acme/shop10/p80", &[one.address])]).await;
    bed.publish("two", vec![prefixed(80, "acme", &[two.address])]).await;
    assert!(get(&bed, "/acme/shop10/p80/a/b?c=d").await.contains("one HTTP/1.1 GET /a/b?c=d\n"));
    assert!(get(&bed, "/acme/shop10/p80/").await.contains("one HTTP/1.1 GET /\n"));
    assert!(get(&bed, "/acme/shop10/p800/").await.contains("two HTTP/1.1 GET /shop10/p800/\n"));
    assert!(get(&bed, "/acme//evil.example/").await.contains("two HTTP/1.1 GET //evil.example/\n"));
    let lost = get(&bed, "/acmeshop/").await;
    assert!(lost.starts_with("HTTP/1.1 404 Not Found\r\n"), "{lost}");
    assert!(lost.ends_with("\r\n\r\nno service has this path\n"), "{lost}");
    let bare = get(&bed, "/acme?x=1").await;
    assert!(bare.starts_with("HTTP/1.1 301 "), "{bare}");
    assert!(bare.contains("\r\nlocation: /acme/?x=1\r\n"), "{bare}");
    let post = raw(&bed, 80, "POST /acme HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(post.starts_with("HTTP/1.1 308 "), "{post}");
    bed.publish("root", vec![prefixed(80, "", &[root.address])]).await;
    assert!(get(&bed, "/acmeshop/").await.contains("root HTTP/1.1 GET /acmeshop/\n"));
    soon(bed.balancer.withdraw("one")).await;
    assert!(get(&bed, "/acme/shop10/p80/").await.contains("two HTTP/1.1 GET /shop10/p80/\n"));
}

#[tokio::test]
async fn headers_are_kept_added_and_taken_away() {
    let bed = Bed::new();
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let answer = raw(
        &bed,
        80,
        "POST /a/x HTTP/1.1\r\nHost: shop.example:80\r\nConnection: close, x-one\r\nX-One: 1\r\n\
         X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nTE: gzip\r\nUpgrade: h2c\r\n\
         Cookie: a=b\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    )
    .await;
    let answer = answer.split_once("HTTP/1.1 200").unwrap().1;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("x-own: yes") && !head.contains("x-hop") && !head.contains("keep-alive"));
    let mut lines: Vec<_> = body.lines().collect();
    assert_eq!(lines.remove(0), "it HTTP/1.1 POST /x");
    lines.sort_unstable();
    let expected = [
        "",
        "content-length: 5",
        "cookie: a=b",
        "hello",
        "host: shop.example:80",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-host: shop.example:80",
        "x-forwarded-prefix: /a",
        "x-forwarded-proto: http",
    ];
    let from = lines.iter().position(|line| line.starts_with("x-forwarded-for: ")).unwrap();
    assert!(lines[from].starts_with("x-forwarded-for: 127."), "{lines:?}");
    lines[from] = "x-forwarded-for: 127.0.0.1";
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn what_is_ambiguous_is_refused() {
    let bed = Bed::new();
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let bad = [
        "GET /a/ HTTP/1.1\r\n\r\n",
        "GET /a/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "POST /a/ HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "POST /a/ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST /a/ HTTP/1.1\r\nhost: a\r\ncontent-length : 5\r\n\r\nhello",
        "GET /a/ HTTP/1.1\r\nhost: a\r\n folded: x\r\n\r\n",
    ];
    for request in bad {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let answer = raw(&bed, 80, &request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{request:?} gives {answer:?}");
    }
    let connect =
        raw(&bed, 80, "CONNECT a:1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(connect.starts_with("HTTP/1.1 405"), "{connect}");
    assert_eq!(bed.seen("it").total, 0, "the service saw none of them");
}

/// The lengths of a message are decided once: a second request cannot hide in
/// the body of the first.
#[tokio::test]
async fn requests_are_not_smuggled() {
    let bed = Bed::new();
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let answer = raw(
        &bed,
        80,
        "POST /a/x HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\
         connection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /a/hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    )
    .await;
    assert!(!answer.contains("hidden"), "{answer}");
    if answer.starts_with("HTTP/1.1 200") {
        assert!(answer.ends_with("\n\nabc"), "{answer}");
        assert!(!answer.contains("content-length: 6"), "{answer}");
        assert_eq!(bed.seen("it").total, 1);
    }
}

async fn h2(
    io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn http2_comes_in_plain_and_encrypted() {
    let tls = Tls::new();
    let bed = tls.bed();
    let target = mirror("it").await;
    let secure = Port { tls: true, ..prefixed(443, "a", &[target.address]) };
    bed.publish("it", vec![prefixed(80, "a", &[target.address]), secure]).await;
    let stream = tls.connect(bed.connect(443).await, &[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let senders = [("http", h2(bed.connect(80).await).await), ("https", h2(stream).await)];
    for (scheme, sender) in senders {
        let mut calls = Vec::new();
        for turn in 0..20 {
            let request = Request::post(format!("{scheme}://shop.example/a/{turn}"))
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .body(Full::new(Bytes::from(format!("body {turn}"))))
                .unwrap();
            calls.push(sender.clone().send_request(request));
        }
        for (turn, response) in soon(futures::future::join_all(calls)).await.into_iter().enumerate()
        {
            let response = response.unwrap();
            assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
            let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.starts_with(&format!("it HTTP/1.1 POST /{turn}\n")), "{text}");
            assert!(text.contains("\nhost: shop.example\n"), "{text}");
            assert!(text.contains("\ncookie: a=1; b=2\n"), "{text}");
            assert!(text.contains(&format!("\nx-forwarded-proto: {scheme}\n")), "{text}");
            assert!(text.ends_with(&format!("\n\nbody {turn}")), "{text}");
        }
    }
}

#[tokio::test]
async fn calls_that_need_http2_get_it() {
    let bed = Bed::new();
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let request = Request::post("http://shop.example/a/Service/Method")
        .header("content-type", "application/grpc")
        .body(Full::default())
        .unwrap();
    let response = soon(h2(bed.connect(80).await).await.send_request(request)).await.unwrap();
    let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.starts_with("it HTTP/2.0 POST http://"), "{text}");
    assert!(text.contains("/Service/Method\n") && text.contains("\nte: trailers\n"), "{text}");
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    bed.publish("it", vec![prefixed(80, "a", &[address])]).await;
    let mut client = bed.connect(80).await;
    let head = "POST /a/ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut target = next_client(&listener).await;
    let mut seen = String::new();
    while !seen.ends_with("3\r\nabc\r\n") {
        seen += &read_some(&mut target, 1).await;
    }
    // The first piece is through while the second does not exist yet.
    target
        .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nxyz\r\n")
        .await
        .unwrap();
    let mut heard = String::new();
    while !heard.ends_with("3\r\nxyz\r\n") {
        heard += &read_some(&mut client, 1).await;
    }
    client.write_all(b"2\r\nde\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(read_some(&mut target, 12).await, "2\r\nde\r\n0\r\n\r\n");
    target.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(read_some(&mut client, 5).await, "0\r\n\r\n");
    let port = bed.seen("it");
    assert_eq!((port.bytes_in, port.bytes_out, port.total), (5, 3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_pass() {
    let bed = Bed::new();
    let target = target(async |stream| {
        let service = service_fn(async |request: Request<Incoming>| {
            Ok::<_, hyper::Error>(Response::new(request.into_body()))
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(bed.connect(80).await)).await.unwrap();
    tokio::spawn(connection);
    let sent = noise(1, 20_000_000);
    let frames: Vec<_> = sent
        .chunks(77_777)
        .map(|chunk| Ok::<_, std::io::Error>(Frame::data(Bytes::copy_from_slice(chunk))))
        .collect();
    let body = StreamBody::new(futures::stream::iter(frames));
    let request = Request::post("/a/").header("host", "a").body(body).unwrap();
    let response = soon(sender.send_request(request)).await.unwrap();
    let came = soon(response.into_body().collect()).await.unwrap().to_bytes();
    assert!(came == sent);
    until("it is counted", || bed.seen("it").connections == 0).await;
    let seen = bed.seen("it");
    assert_eq!((seen.bytes_in, seen.bytes_out), (20_000_000, 20_000_000));
}

#[tokio::test]
async fn what_targets_do_wrong_is_said() {
    let mut options = options();
    options.limits.response = Duration::from_millis(200);
    options.health.failures = 1000;
    let bed = Bed::with(options);
    let silent = target(async |stream| {
        let _stream = stream;
        futures::future::pending().await
    })
    .await;
    let rude = target(async |mut stream| {
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await;
    let ports = vec![
        prefixed(80, "none", &[]),
        prefixed(80, "dead", &[nobody().await]),
        prefixed(80, "silent", &[silent.address]),
        prefixed(80, "rude", &[rude.address]),
    ];
    bed.publish("it", ports).await;
    for (path, status, reason) in [
        ("/none/", "503 Service Unavailable", "the service has no targets"),
        ("/dead/", "502 Bad Gateway", "no target took the connection"),
        ("/silent/", "504 Gateway Timeout", "the target does not answer in time"),
        ("/rude/", "502 Bad Gateway", "the target broke off"),
    ] {
        let answer = get(&bed, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{path}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{reason}\n")), "{path}: {answer}");
    }
    let errors: Vec<_> =
        bed.balancer.status("it").unwrap().ports.iter().map(|port| port.errors).collect();
    assert_eq!(errors, [1, 1, 1, 1]);
    let late =
        raw(&bed, 80, "POST /silent/ HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab").await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
}

#[tokio::test]
async fn unhealthy_targets_are_not_asked() {
    let bed = Bed::new();
    bed.publish("it", vec![prefixed(80, "a", &[nobody().await, nobody().await])]).await;
    until("it is unhealthy", || bed.balancer.status("it").unwrap().health.is_unhealthy()).await;
    let answer = get(&bed, "/a/").await;
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nno target is healthy\n"), "{answer}");
    assert!(bed.seen("it").targets.iter().all(|target| target.total == 0));
}

#[tokio::test]
async fn a_request_goes_to_the_next_target() {
    let mut options = options();
    options.health.every = Duration::from_secs(3600);
    options.health.failures = 100;
    let bed = Bed::with(options);
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[nobody().await, target.address])]).await;
    for turn in 0..6 {
        let request = format!(
            "POST /a/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 6\r\n\r\nbody {turn}"
        );
        let answer = raw(&bed, 80, &request).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(&format!("body {turn}")),
            "{answer}"
        );
    }
    assert_eq!(bed.seen("it").errors, 0);
}

#[tokio::test]
async fn slow_clients_are_not_waited_for() {
    let options = options();
    let limits = Limits {
        header: Duration::from_millis(100),
        http_idle: Duration::from_millis(100),
        ..options.limits.clone()
    };
    let bed = Bed::with(Options { limits, ..options });
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    for said in
        ["", "G", "PRI * HT", "GET /a/ HTTP/1.1\r\nhost: ", "GET /a/ HTTP/1.1\r\nhost: a\r\n\r\n"]
    {
        let mut stream = bed.connect(80).await;
        stream.write_all(said.as_bytes()).await.unwrap();
        let ended = read_all(&mut stream).await;
        assert!(
            ended.is_ok() || ended.unwrap_err().kind() == ErrorKind::ConnectionReset,
            "{said:?}"
        );
    }
}

#[tokio::test]
async fn withdrawing_waits_for_requests_and_closes_connections() {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    let other = mirror("other").await;
    bed.publish("it", vec![prefixed(80, "a", &[address])]).await;
    bed.publish("other", vec![prefixed(80, "b", &[other.address])]).await;
    let mut client = bed.connect(80).await;
    client.write_all(b"GET /a/ HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut target = next_client(&listener).await;
    let balancer = bed.balancer.clone();
    let work = tokio::spawn(async move { balancer.withdraw("it").await });
    until("it is gone", || bed.balancer.status("it").is_none()).await;
    assert!(get(&bed, "/a/").await.starts_with("HTTP/1.1 404"));
    assert!(!work.is_finished());
    target.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
    let mut heard = String::new();
    while !heard.ends_with("\r\n\r\nhi") {
        heard += &read_some(&mut client, 1).await;
    }
    soon(work).await.unwrap();
    // The other one's clients keep their connections, until it goes too.
    client.write_all(b"GET /b/ HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert_eq!(read_some(&mut client, 12).await, "HTTP/1.1 200");
    soon(bed.balancer.withdraw("other")).await;
    assert!(read_all(&mut client).await.is_ok());
    assert!(TcpStream::connect(bed.at(80)).await.is_err());
}

#[tokio::test]
async fn withdrawing_cuts_answers_without_end() {
    let mut options = options();
    options.limits.drain = Duration::from_millis(50);
    let bed = Bed::with(options);
    let endless = target(async |mut stream| {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nnever ends").await;
        futures::future::pending().await
    })
    .await;
    let never = target(async |stream| {
        let _stream = stream;
        futures::future::pending().await
    })
    .await;
    let ports = vec![prefixed(80, "a", &[endless.address]), prefixed(80, "b", &[never.address])];
    bed.publish("it", ports).await;
    let mut first = bed.connect(80).await;
    first.write_all(b"GET /a/ HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut second = bed.connect(80).await;
    second.write_all(b"GET /b/ HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let inside =
        || bed.balancer.status("it").unwrap().ports.iter().map(|p| p.connections).sum::<usize>();
    until("both are inside", || inside() == 2).await;
    soon(bed.balancer.withdraw("it")).await;
    let _ = read_all(&mut first).await;
    let _ = read_all(&mut second).await;
    assert!(TcpStream::connect(bed.at(80)).await.is_err());
}

#[tokio::test]
async fn a_head_is_only_a_head() {
    let bed = Bed::new();
    let target = mirror("it").await;
    bed.publish("it", vec![prefixed(80, "a", &[target.address])]).await;
    let answer = raw(&bed, 80, "HEAD /a/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    let old = raw(&bed, 80, "GET /a/ HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200") && old.contains("it HTTP/1.1 GET /\n"), "{old}");
    assert_eq!(bed.seen("it").protocol, Protocol::Http);
}

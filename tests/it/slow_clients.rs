//! Clients that are slow on purpose, or gone: each is cut off, and none keeps another waiting.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use gpumem::http::{Bounds, serve_within, text};
use hyper::StatusCode;
use tokio::net::{TcpListener, TcpSocket};

/// Far beyond every bound of these tests: whoever is still waiting then waits for ever.
const EVER: Duration = Duration::from_secs(30);

/// A server that answers with `size` bytes, and its address.
async fn server(bounds: Bounds, size: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = move |_| async move { text(StatusCode::OK, "x".repeat(size)) };
    tokio::spawn(serve_within(bounds, listener, None, handler, std::future::pending()));
    address
}

fn short() -> Bounds {
    Bounds { header: Duration::from_millis(50), taking: Duration::from_millis(50), ..Bounds::default() }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(EVER)).unwrap();
    stream
}

/// Waits until the server has closed the connection.
fn closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // Closed with something unread it is a reset.
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server closes it");
    }
}

fn answered(stream: &mut TcpStream) {
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("it is answered in the end");
    assert_eq!(&first, b"HTTP/1.1 200");
}

const GET: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_header_that_never_ends_and_a_client_that_says_nothing_are_cut_off() {
    let address = server(short(), 10).await;
    for begun in ["", "GET /metrics HTTP/1.1\r\nhost: a\r\n", "G"] {
        let mut stream = connect(address);
        stream.write_all(begun.as_bytes()).unwrap();
        closed(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn between_two_requests_a_client_may_not_wait_for_ever_either() {
    let mut stream = connect(server(short(), 10).await);
    stream.write_all(GET).unwrap();
    closed(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_takes_nothing_of_its_answer_gives_its_place_back() {
    // More than the kernel keeps for both ends.
    let address = server(Bounds { connections: 1, ..short() }, 64 << 20).await;
    let (mut slow, mut next) = (connect(address), connect(address));
    slow.write_all(GET).unwrap();
    next.write_all(GET).unwrap();
    answered(&mut next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_address_cannot_take_the_places_of_all_others() {
    let address = server(Bounds { header: EVER * 2, ..Bounds::default() }, 10).await;
    let hostile: Vec<TcpStream> = (0..64).map(|_| connect(address)).collect();
    let probe = TcpSocket::new_v4().unwrap();
    probe.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0)).unwrap();
    let mut probe = probe.connect(address).await.unwrap().into_std().unwrap();
    probe.set_nonblocking(false).unwrap();
    probe.set_read_timeout(Some(EVER)).unwrap();
    probe.write_all(GET).unwrap();
    answered(&mut probe);
    drop(hostile);
}

//! A daemon among hostile clients: users who may connect, and who attach, leave, ask and send
//! without end. Members lose nothing, and operators are answered.

mod testbed;

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Gid, Resource, Uid};
use serde_json::Value;
use tapdeck_client::{Member, Next, Options};
use tapdeck_testkit::{Net, Sender, SplitMix64, wait_for};
use testbed::daemon::{Asking, Daemon, assert_accounted};
use testbed::recorder::{frame, number};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Two users without any privilege.
const HOSTILE: u32 = 65_534;
const PLAIN: u32 = 65_533;

/// Two groups of which all may attach to the second, and a socket for everybody.
fn serve(net: &Net, serve: &str) -> Daemon {
    let group = |name: &str, more: &str| {
        format!("[[group]]\nname = \"{name}\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n{more}\n")
    };
    let config = [
        format!("[serve]\nsocket-mode = \"0666\"\n{serve}\n"),
        group("good", "allow = [\"user:root\"]"),
        group("open", "snaplen = 100\nmax-members = 100"),
    ];
    let daemon = Daemon::start(net, &config.concat());
    set_permissions(daemon.dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    daemon
}

/// Makes the calling thread one of another user, as far as the kernel tells it to who is connected.
fn become_user(user: u32) {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[]).expect("root may");
    set_thread_res_gid(gid, gid, gid).expect("root may");
    set_thread_res_uid(uid, uid, uid).expect("root may");
}

/// Does something as another user.
fn as_user<T: Send>(user: u32, what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            become_user(user);
            what()
        });
        work.join().unwrap_or_else(|reason| std::panic::resume_unwind(reason))
    })
}

fn ask_as(user: u32, daemon: &Daemon, request: &str) -> (Asking, Value) {
    let socket = daemon.socket();
    as_user(user, || {
        let mut asking = Asking::at(&socket);
        let answer = asking.ask(request);
        (asking, answer)
    })
}

fn refusal(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// One connection of a hostile user after the other, until it is over.
fn harass(socket: &Path, seed: u64, is_over: &AtomicBool) {
    become_user(HOSTILE);
    let mut random = SplitMix64(seed);
    let long = vec![b'x'; 256 << 10];
    while !is_over.load(Relaxed) {
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
        let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
        for _ in 0..8 {
            let request: &[u8] = match random.below(6u32) {
                0 | 1 => b"{\"verb\":\"attach\",\"group\":\"open\"}\n",
                2 => b"{\"verb\":\"leave\"}\n",
                3 => b"{\"verb\":\"stats\"}\n",
                4 => &long,
                _ => b"{\"verb\":\"rules\",\"do\":\"hits\",\"group\":\"open\"}\n",
            };
            // Whatever becomes of it: the daemon may take its place away, or let it wait.
            let sent = stream.write_all(request);
            let read = stream.read(&mut [0; 4096]);
            let is_gone = |e: &std::io::Error| e.kind() != ErrorKind::WouldBlock;
            if is_over.load(Relaxed)
                || sent.is_err_and(|e| is_gone(&e))
                || read.map_or_else(|e| is_gone(&e), |n| n == 0)
            {
                break;
            }
        }
    }
}

/// Reads all that comes to a member, until nothing comes any more once it is over.
fn read_all(mut member: Member, came: &AtomicU64, is_over: &AtomicBool) -> u64 {
    loop {
        match member.next_batch(Some(Duration::from_millis(100))).expect("it can be read") {
            Next::Got(batch) => {
                came.fetch_add(batch.packets().count() as u64, Relaxed);
            }
            Next::Nothing if !is_over.load(Relaxed) => {}
            Next::Nothing | Next::End => return member.counts().dropped,
        }
    }
}

#[test]
fn members_lose_nothing_and_operators_are_answered_beside_hostile_clients() {
    const CONNECTIONS: u64 = 64;
    const IDLE: usize = 1000;
    const REQUESTS: usize = 200;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
    let net = Net::new();
    let daemon = serve(&net, "");
    let options = Options { socket: daemon.socket(), ..Options::default() };
    let members = [(); 2].map(|()| Member::open("good", &options).expect("root may attach"));
    let mut watch = daemon.connect();
    assert_eq!(watch.ask(r#"{"verb":"watch"}"#)["ok"], true);

    let socket = daemon.socket();
    let (is_over, has_all, came) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (sent, dropped, times) = thread::scope(|scope| {
        for seed in 0..CONNECTIONS {
            let (socket, is_over) = (&socket, &is_over);
            scope.spawn(move || harass(socket, seed, is_over));
        }
        let readers = members.map(|member| scope.spawn(|| read_all(member, &came, &has_all)));
        // Some 15 MB/s, whoever reads: a member that nobody wakes for a second loses packets.
        let sender = scope.spawn(|| {
            net.a.enter();
            let mut sender = Sender::on("va");
            let mut sent = 0;
            while !is_over.load(Relaxed) {
                for _ in 0..20 {
                    let mut frame = frame(MAC, 1514, sent);
                    frame[34..36].copy_from_slice(&(sent as u16).to_be_bytes());
                    sender.send(&frame);
                    sent += 1;
                }
                thread::sleep(Duration::from_millis(2));
            }
            u64::from(sent)
        });
        let idle = as_user(HOSTILE, || (0..IDLE).map(|_| Asking::at(&socket)).collect::<Vec<_>>());
        let mut times = Vec::new();
        for i in 0..REQUESTS {
            let begun = Instant::now();
            let request = match i % 3 {
                0 => r#"{"verb":"stats"}"#,
                1 => r#"{"verb":"snaplen","group":"open","snaplen":80}"#,
                _ => r#"{"verb":"rules","do":"list","group":"open"}"#,
            };
            let answer = daemon.connect().ask(request);
            assert_eq!(answer["ok"], true, "{answer}");
            times.push(begun.elapsed());
            thread::sleep(Duration::from_millis(20));
        }
        // A user who asks for little has it, whatever the hostile one has asked for before.
        let (_plain, answer) = ask_as(PLAIN, &daemon, r#"{"verb":"attach","group":"open"}"#);
        assert_eq!(answer["ok"], true, "{answer}");
        drop(idle);
        is_over.store(true, Relaxed);
        let sent = sender.join().expect("it sends");
        daemon.wait_seen("good", sent);
        has_all.store(true, Relaxed);
        let dropped: u64 = readers.map(|reader| reader.join().expect("it reads")).iter().sum();
        (sent, dropped, times)
    });
    let mut times = times;
    times.sort_unstable();
    eprintln!(
        "{REQUESTS} requests of operators: median {:?}, longest {:?}; {sent} packets",
        times[REQUESTS / 2],
        times[REQUESTS - 1]
    );
    assert_eq!(dropped, 0, "of {sent} packets");
    assert_eq!(came.load(Relaxed), sent);
    // The operator who watches has kept the place.
    let mut line = String::new();
    watch.0.read_line(&mut line).expect("it is told every second");
    assert!(line.ends_with("}\n"), "{line}");
    wait_for("the hostile members to leave", || {
        daemon.group("open")["members"].as_array().is_some_and(Vec::is_empty)
    });
    let last = daemon.stop();
    let good = &last["groups"][0];
    assert_accounted(good);
    assert_eq!(number(good, "captured"), sent, "{good}");
}

#[test]
fn a_group_is_for_those_whom_it_allows() {
    let net = Net::new();
    let daemon = serve(&net, "");
    let attach = |group: &str| format!(r#"{{"verb":"attach","group":"{group}"}}"#);
    let (mut asking, refused) = ask_as(PLAIN, &daemon, &attach("good"));
    assert!(refusal(&refused).contains("allow of group good"), "{refused}");
    assert_eq!(asking.ask(&attach("open"))["ok"], true, "the refusal took nothing");
    assert_eq!(daemon.connect().ask(&attach("good"))["ok"], true, "root may always");
    daemon.wait_members("good", 0);
    daemon.stop();
}

#[test]
fn users_and_groups_have_quotas_of_members_and_memory() {
    let net = Net::new();
    // A member has one ring here, of 1 MiB.
    let small = "ring-bytes = \"1MiB\"\nblock-bytes = \"128KiB\"\n";
    for (quota, part) in
        [("max-members = 3", "may have 3 (max-members"), ("memory = \"5MiB\"", "may take 5 MiB")]
    {
        let daemon = serve(&net, &[small, quota].concat());
        let attach = r#"{"verb":"attach","group":"open"}"#;
        let mut members = Vec::new();
        let refused = loop {
            let (asking, answer) = ask_as(PLAIN, &daemon, attach);
            if answer["ok"] != true {
                break answer;
            }
            members.push(asking);
        };
        assert!(refusal(&refused).contains(part), "{quota}: {refused}");
        assert!((3..=4).contains(&members.len()), "{quota}: {} members", members.len());
        assert_eq!(ask_as(HOSTILE, &daemon, attach).1["ok"], true, "each user has a quota");
        // Of a user's members one leaves, and another may come.
        let mut one = members.pop().expect("there are three");
        assert_eq!(one.ask(r#"{"verb":"leave"}"#)["ok"], true);
        assert_eq!(ask_as(PLAIN, &daemon, attach).1["ok"], true);
        drop(members);
        daemon.stop();
    }

    let group = |more: &str| {
        format!("[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n{more}\n")
    };
    for (config, most) in [
        (group("max-members = 2"), 2),
        (group("memory = \"4MiB\""), 3),
        // Copies cost every packet, so there is a bound where nothing is said.
        (group("steering = \"copy\""), 16),
    ] {
        let daemon = Daemon::start(&net, &format!("[serve]\n{small}{config}"));
        let mut members = Vec::new();
        let refused = loop {
            let mut asking = daemon.connect();
            let answer = asking.ask(r#"{"verb":"attach","group":"g"}"#);
            if answer["ok"] != true {
                break answer;
            }
            members.push(asking);
        };
        assert!(refusal(&refused).contains(&format!("may have {most} ")), "{config}: {refused}");
        assert_eq!(members.len(), most, "{config}");
        drop(members);
        daemon.stop();
    }
}

/// However often a user connects, the places of operators and of other users are theirs.
#[test]
fn a_user_who_connects_without_end_takes_only_places_of_that_user() {
    let net = Net::new();
    let daemon = serve(&net, "");
    let stats = r#"{"verb":"groups"}"#;
    let mut operator = daemon.connect();
    assert_eq!(operator.ask(r#"{"verb":"watch"}"#)["ok"], true);
    let (mut plain, answer) = ask_as(PLAIN, &daemon, stats);
    assert_eq!(answer["ok"], true);
    let socket = daemon.socket();
    let many: Vec<Asking> =
        as_user(HOSTILE, || (0..200).map(|_| Asking::at(&socket)).collect::<Vec<_>>());
    // An operator who connects behind them is answered when all of them were taken in.
    assert_eq!(daemon.connect().ask(stats)["ok"], true);
    assert_eq!(plain.ask(stats)["ok"], true, "another user keeps the place");
    let mut line = String::new();
    BufReader::read_line(&mut operator.0, &mut line).expect("it is told every second");
    assert!(line.ends_with("}\n"), "an operator keeps the place: {line:?}");
    drop(many);
    daemon.stop();
}

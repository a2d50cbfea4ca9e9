//! Members come and go on threads beside the daemon's loop.
//!
//! Why not in the loop? Making a member's rings and taking them away makes the kernel wait for
//! milliseconds, and some user may attach and leave without end. [`Comers`] has one thread that
//! makes rings and one that takes them away. Users who want to attach take turns, operators first,
//! so that a user's thousand requests keep another's one from nothing; each waits for its answer
//! alone. What may be asked for at all is limited before ([`Quota`], `control::rates`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tapdeck_capture::groups::{Groups, Joined, Joining, Leaving, Left, Membership};

use super::allow::Allowed;
use super::daemon::explain;
use crate::control::{Bell, ClientId, Peer};
use crate::units::counted;

/// What one user may have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub members: u32,
    /// Bytes of members' rings.
    pub memory: u64,
}

/// A request to attach.
pub struct Request {
    pub client: ClientId,
    pub peer: Peer,
    pub group: String,
    pub wanted: Wanted,
    pub allowed: Arc<Allowed>,
}

/// What is wanted by who asks to be a member.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    New {
        weight: u32,
    },
    /// The place of this member, which is away.
    Back {
        member: u32,
    },
}

/// What is done beside the loop for a request.
enum Work {
    Join(Joining),
    Back(u32),
}

enum Made {
    Joined(Joined),
    Back(u32),
}

/// What became of a request: the new member, or the text that the client is told.
pub struct Came {
    pub client: ClientId,
    pub peer: Peer,
    pub group: String,
    pub member: Result<Membership, String>,
    /// Whether the member had its place before.
    pub is_back: bool,
}

/// Those who come and go.
pub struct Comers {
    quota: Quota,
    /// Requests by users. An operator's come before those of others.
    waiting: BTreeMap<(bool, u32), VecDeque<Request>>,
    /// The user whose request was taken last.
    last: (bool, u32),
    /// The request whose rings are being made.
    under_way: Option<Request>,
    /// The users of members, until their rings are gone.
    users: BTreeMap<u32, u32>,
    make: Sender<(Work, Peer, Arc<Allowed>)>,
    made: Receiver<Result<Made, Work>>,
    take_away: Sender<Leaving>,
    taken_away: Receiver<Left>,
}

impl Comers {
    /// Starts the threads, where there are members of these users already. They ring `bell` when
    /// something has become of a request.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn start(quota: Quota, bell: &Bell, users: BTreeMap<u32, u32>) -> io::Result<Self> {
        let (make, to_make) = channel::<(Work, Peer, Arc<Allowed>)>();
        let (tell_made, made) = channel();
        let rings = bell.clone();
        let join = move || {
            for (work, peer, allowed) in to_make {
                let result = match work {
                    work if !allowed.permits(peer) => Err(work),
                    Work::Join(joining) => Ok(Made::Joined(joining.make())),
                    Work::Back(member) => Ok(Made::Back(member)),
                };
                if tell_made.send(result).is_err() {
                    return;
                }
                rings.ring();
            }
        };
        let (take_away, to_take) = channel::<Leaving>();
        let (tell_taken, taken_away) = channel();
        let rings = bell.clone();
        let leave = move || {
            while let Ok(mut leaving) = to_take.recv() {
                // All that have left by now share one wait.
                for more in to_take.try_iter() {
                    leaving.add(more);
                }
                if tell_taken.send(leaving.settle()).is_err() {
                    return;
                }
                rings.ring();
            }
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
        };
        spawn("tapdeck-join", Box::new(join))?;
        spawn("tapdeck-leave", Box::new(leave))?;
        Ok(Self {
            quota,
            waiting: BTreeMap::new(),
            last: (false, 0),
            under_way: None,
            users,
            make,
            made,
            take_away,
            taken_away,
        })
    }

    /// Takes a request. What becomes of it is told by [`Comers::came`].
    pub fn push(&mut self, request: Request) {
        let user = (!request.peer.is_operator(), request.peer.uid);
        self.waiting.entry(user).or_default().push_back(request);
    }

    /// Forgets the request of a client that has gone, unless its rings are being made.
    pub fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|_, requests| {
            requests.retain(|request| request.client != client);
            !requests.is_empty()
        });
    }

    /// Returns what has become of requests, and begins the next one.
    pub fn came(&mut self, groups: &mut Groups) -> Vec<Came> {
        let mut all = Vec::new();
        if self.under_way.is_some()
            && let Ok(made) = self.made.try_recv()
        {
            let member = match made {
                Ok(Made::Joined(joined)) => groups.finish_join(joined).map_err(explain),
                Ok(Made::Back(member)) => groups.come_back(member).map_err(explain),
                Err(work) => {
                    if let Work::Join(joining) = work {
                        groups.give_up(joining);
                    }
                    let group =
                        self.under_way.as_ref().map_or("", |request| request.group.as_str());
                    Err(format!(
                        "no permission: allow of group {group} in the daemon's configuration names neither this user nor a group of it"
                    ))
                }
            };
            all.extend(self.under_way.take().map(|request| self.end(request, member)));
        }
        while self.under_way.is_none()
            && let Some(request) = self.next()
        {
            match self.begin(groups, &request) {
                Ok(()) => self.under_way = Some(request),
                Err(why) => all.push(self.end(request, Err(why))),
            }
        }
        all
    }

    /// Whether somebody who was away is about to come back.
    pub fn expects(&self) -> bool {
        let waiting = self.waiting.values().flatten().chain(&self.under_way);
        { waiting }.any(|request| matches!(request.wanted, Wanted::Back { .. }))
    }

    fn end(&mut self, request: Request, member: Result<Membership, String>) -> Came {
        let Request { client, peer, group, wanted, .. } = request;
        let is_back = matches!(wanted, Wanted::Back { .. });
        if let Ok(membership) = &member {
            self.users.insert(membership.member, peer.uid);
        }
        Came { client, peer, group, member, is_back }
    }

    fn begin(&self, groups: &mut Groups, request: &Request) -> Result<(), String> {
        let peer = request.peer;
        let work = match request.wanted {
            Wanted::New { weight } => {
                if !peer.is_operator() {
                    self.check_quota(peer.uid, groups.member_bytes())?;
                }
                let joining = groups.begin_join(&request.group, weight, peer.uid);
                Work::Join(joining.map_err(explain)?)
            }
            // It has its rings.
            Wanted::Back { member } => Work::Back(member),
        };
        let sent = self.make.send((work, peer, request.allowed.clone()));
        sent.map_err(|_| "cannot make rings any more: a thread of the daemon has ended".to_owned())
    }

    fn check_quota(&self, user: u32, member_bytes: u64) -> Result<(), String> {
        let members = self.users.values().filter(|of| **of == user).count() as u64;
        let Quota { members: most, memory } = self.quota;
        if members >= u64::from(most) {
            return Err(format!(
                "user {user} has {} and may have {most} (max-members of the daemon's configuration): let one leave first",
                counted(members, "member")
            ));
        }
        if (members + 1) * member_bytes > memory {
            return Err(format!(
                "the rings of user {user} may take {} MiB, and those of another member would make it {} MiB (memory and ring-bytes of the daemon's configuration): let one leave first",
                memory >> 20,
                ((members + 1) * member_bytes) >> 20
            ));
        }
        Ok(())
    }

    /// Returns the next request: of an operator if there is one, else of the user whose turn it is.
    fn next(&mut self) -> Option<Request> {
        let first = *self.waiting.keys().next()?;
        let after = self.waiting.range(self.last..).map(|(user, _)| *user);
        // The first part of a user's key is false for operators, who are in front.
        let user = match first {
            (false, _) => first,
            (true, _) => { after }.find(|user| *user != self.last).unwrap_or(first),
        };
        let requests = self.waiting.get_mut(&user)?;
        let request = requests.pop_front();
        if requests.is_empty() {
            self.waiting.remove(&user);
        }
        self.last = user;
        request
    }

    /// Lets members leave. They have left when [`Comers::left`] says so.
    pub fn leave(&mut self, leaving: Leaving) {
        // A thread that has ended has told of its fault; the members' places stay taken.
        let _ = self.take_away.send(leaving);
    }

    /// Returns members that have left.
    pub fn left(&mut self) -> Vec<Left> {
        let left: Vec<Left> = self.taken_away.try_iter().collect();
        for number in left.iter().flat_map(Left::members) {
            self.users.remove(&number);
        }
        left
    }
}

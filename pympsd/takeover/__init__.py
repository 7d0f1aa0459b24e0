"""Takeover: a daemon takes over the sockets, clients and servers of the daemon before it in the same pipe directory.

The problem: a daemon may be killed (kill -9, the OOM killer) or replaced by a new version, and running programs
must continue unaffected. A socket exists only as long as a process has it open, so a second process has to keep it
open. What operators have set is in the daemon's memory, so a file has to contain it too. Two things therefore outlive
a daemon:

    the keeper      a small process that holds copies of descriptors, by name (`keeper`, docs/decisions/012-keeper.md)
    the state file  pympsd.state, mode 0600: what commands have set, which processes are its servers (`state_file`)

                 HOLD, NOTE, DROP                     one socket each
       daemon ---------------------> keeper       clients ......... daemon, and a copy in the keeper
         |  \\                          |          servers ......... daemon, and a copy in the keeper
         |   `--> pympsd.state         | every entry, then COMPLETE
         x killed       |              v
                        `-------> next daemon ---- ReportRequest ----> servers, which report their clients

What the keeper holds, by the names in `state.entries`: the listening sockets, the daemon's end of each server's link,
connections whose peers wait, pidfds of clients of the driver's server, and the log FIFO. The state file holds
`state.records.PersistentState`. Servers' clients and contexts are in neither: each server has its own.

A daemon is killed. Connections wait in the backlog, packets in the sockets; servers and clients run on. The next
daemon then, in this order:

1. claims the pipe directory (`directory_claim`): the lock of the killed daemon is free, or will be in a moment;
2. fetches every entry from the keeper (`keeper.link`), which serves this daemon from then on, and sorts the entries
   (`keeper.entries`). A keeper that another running daemon uses is left alone;
3. reads the state file (`state_file`), which is believed only if this user wrote it since the machine started, and
   adapts it: to other devices (`state.other_devices`) or to protocol 2 (`state.protocol_2`);
4. restores the state (`pympsd.state_machine.takeover`): limits, named servers, the order of the queue. A server whose
   process is still the same one is pending: it keeps its place, and its user gets no other server;
5. asks each pending server over its old link for a report (`servers`), with a random token, because answers to the
   previous daemon may lie in the socket. A server that reports in time is taken over with its clients; one of another
   version or with other devices ends with its last client; one that does not report is killed after 10 s;
6. serves the connections that wait, first those that the previous daemon had accepted.

A daemon is replaced (`--replace`). The new one sends the old one HAND_OVER; the old one ends, but leaves keeper,
state file and servers, and the steps above follow. A daemon that quits removes the state file and sends END to the
keeper: nothing is left.

Invariants:

- Ids never repeat: those of each generation of daemons begin above all earlier ones (`first_id`).
- A PID alone does not identify a process: its start time is compared too, while the pidfd is open.
- Entries that nobody takes are closed and dropped. A copy of a socket that nobody serves would hide its end from the
  peer.
- Names, notes and packets of the keeper, and the state file's fields, stay readable: either side may be older.

What must never happen: two daemons that serve one directory; a server that outlives daemon, keeper and clients; a
client that waits for a daemon that nobody will start (the keeper closes such connections when its socket is removed);
a state file of another user, or from before the last boot, that is believed.
"""

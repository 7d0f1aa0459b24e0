"""The reader of the logs."""

from __future__ import annotations

from pympsd.journal.catalogue import SERVER_LINES
from pympsd.journal.line_format import Dialect
from tests.chaos.identity import ProcessKey
from tests.chaos.log_history import Line, LogHistory, judge, read


def history_of(control: str, server: str = "", logs: LogHistory | None = None) -> LogHistory:
    logs = logs or LogHistory()
    for line in control.strip().splitlines():
        pid, _, text = line.strip().partition(" ")
        logs.hear_control(Line("", "Control", int(pid), text))
    for line in server.strip().splitlines():
        pid, _, text = line.strip().partition(" ")
        logs.hear_server(Line("", "Server", int(pid), text))
    return logs


START = "1 Starting control daemon using socket /x\n1 Starting new server 7 for user 5\n1 NEW SERVER 7: Ready\n"
END = "1 Server 7 exited with status 0\n1 Exit with status 0\n"
CONNECTED = "7 New client 50 connected\n7 Volta MPS: status of client {50, 1} is ACTIVE\n"
DISCONNECTED = "7 Client {50, 1} exit\n7 Client 50 disconnected\n"


def test_lines_as_they_are_written() -> None:
    stamp = "[2013-08-05 12:50:23.347"
    assert list(read(f"{stamp} Control 13894] NEW SERVER 7: Ready\n{stamp} Server    10] x y\nno\n")) == [
        Line("2013-08-05 12:50:23.347", "Control", 13894, "NEW SERVER 7: Ready"),
        Line("2013-08-05 12:50:23.347", "Server", 10, "x y"),
        Line("", "", 0, "no"),
    ]


def test_a_whole_session() -> None:
    logs = history_of(START + END, CONNECTED + DISCONNECTED)
    assert judge(logs, (), (), [50]) == []
    assert [(server.pid, server.uid, server.status, server.met) for server in logs.servers] == [(7, 5, 0, {50})]


def test_a_server_that_never_ends() -> None:
    assert "server 7 was started and never ended" in judge(history_of(START), (), (), ())


def test_a_daemon_that_leaves_a_server() -> None:
    assert judge(history_of(START + "1 Exit with status 0"), (), (), ())


def test_two_servers_of_different_users_never_run_together() -> None:
    two = START + "1 Starting new server 8 for user 6\n1 Server 8 exited with status 0\n" + END
    assert judge(history_of(two), (), (), ()) == ["server 8 is started while [7] have not ended"]


def test_a_client_that_never_leaves() -> None:
    assert len(judge(history_of(START + END, CONNECTED), (), (), ())) == 2
    assert judge(history_of(START + END, CONNECTED), {ProcessKey(7)}, (), ()) == []
    assert judge(history_of(START + END, CONNECTED), (), {ProcessKey(7)}, ()) == []


def test_a_client_that_leaves_twice() -> None:
    assert len(judge(history_of(START + END, CONNECTED + DISCONNECTED + DISCONNECTED), {ProcessKey(7)}, (), ())) == 2


def test_a_status_without_a_cause() -> None:
    crashed = START + END.replace("status 0\n1 Exit", "status 1\n1 Exit")
    assert judge(history_of(crashed), (), (), ()) == ["server 7 ended with status 1, and was not killed"]
    assert judge(history_of(crashed), {ProcessKey(7)}, (), ()) == []


def test_a_client_that_no_server_met() -> None:
    assert judge(history_of(START + END, CONNECTED + DISCONNECTED), (), (), [50, 51]) == [
        "client 51 had a server, and no server met it"
    ]


def test_defects_are_reported() -> None:
    defect = "1 The control daemon hit an internal error and continues: x\n"
    assert len(judge(history_of(START + defect + END), (), (), ())) == 1
    assert len(judge(history_of(START + END, "7 Protocol violation by client 50: x"), (), (), ())) == 1


def test_dropped_lines_leave_the_books_open() -> None:
    assert (
        judge(history_of(START + END, CONNECTED + "7 Dropped 3 log lines: too many in a short time"), (), (), [51])
        == []
    )


def test_a_killed_daemons_server_may_continue() -> None:
    killed = START + "2 Starting control daemon using socket /x\n"
    assert judge(history_of(killed + "2 Exit with status 0", CONNECTED), {ProcessKey(1)}, (), [50]) == []
    # The daemon that took it over may log its end.
    assert (
        judge(
            history_of(killed + "2 Server 7 exited with status 0\n2 Exit with status 0", CONNECTED),
            {ProcessKey(1)},
            (),
            [50],
        )
        == []
    )


def test_readiness_and_ends_out_of_nothing() -> None:
    assert judge(history_of("1 Starting control daemon using socket /x\n1 NEW SERVER 7: Ready\n"), (), (), ())
    assert judge(history_of(START + END + "1 Server 7 exited with status 0"), (), (), ())


R580_MET = (
    "7 Received new client request for {PID: 50, Context ID: 0}\n7 Client {PID: 50, Context ID: 0} connected\n"
    "7 Client {PID: 50, Context ID: 1} connected\n7 Status of client {PID: 50, Context ID: 1} is ACTIVE\n"
)
R580_LEFT = (
    "7 Client {PID: 50, Context ID: 1} exiting. Number of active client contexts is 0.\n"
    "7 Client process 50 disconnected\n"
)


def test_the_same_session_in_the_dialect_of_driver_580() -> None:
    logs = history_of(START + END, R580_MET + R580_LEFT)
    assert logs.servers[0].met == {50}
    assert logs.servers[0].contexts == {(50, 1): 0}
    assert judge(logs, (), (), [50]) == []
    assert len(judge(history_of(START + END, R580_MET), (), (), [50])) == 2
    assert len(judge(history_of(START + END, R580_MET + R580_LEFT * 2), (), (), [50])) == 2


def test_lines_are_written_in_both_dialects_as_they_are_read_here() -> None:
    client = {"pid": 50, "context": 1, "left": 0}
    for dialect in (Dialect.DOCUMENTED, Dialect.R580):
        events = (("client_connected", 0), ("context_active", 1), ("context_exit", 1), ("client_disconnected", 0))
        lines = [
            (SERVER_LINES[event].sentence(dialect) or "").format(**{**client, "context": n}) for event, n in events
        ]
        logs = history_of(START + END, "\n".join(f"7 {line}" for line in lines))
        assert logs.servers[0].met == {50}
        assert logs.servers[0].contexts == {(50, 1): 0}
        assert logs.servers[0].clients == {50: 0}


def test_a_server_with_the_pid_of_one_before_is_another() -> None:
    starts = iter((11, 22, 33))
    logs = LogHistory(lambda pid: ProcessKey(pid, next(starts)))
    history_of(START + "1 Server 7 exited with status -9\n", CONNECTED, logs)
    history_of(
        "1 Starting new server 7 for user 6\n1 NEW SERVER 7: Ready\n7 Started executor 70 for device 1\n",
        "",
        logs,
    )
    history_of("", "7 Started executor 70 for device 1", logs)
    history_of("1 Server 7 exited with status -9\n1 Exit with status 0", "", logs)
    first, second = logs.servers
    assert (first.process, second.process) == (ProcessKey(7, 11), ProcessKey(7, 22))
    assert second.executors == {ProcessKey(70, 33): 1}
    # A kill of the first does not explain the end of the second.
    assert judge(logs, {first.process}, (), ()) == ["server 7 ended with status -9, and was not killed"]
    assert judge(logs, {first.process, second.process}, (), ()) == []


def test_a_fault_before_volta_may_end_a_server() -> None:
    ends = START + END.replace("status 0\n1 Exit", "status 1\n1 Exit")
    fault = f"7 {SERVER_LINES['fault_ends_server'].sentence(Dialect.R580)}"
    assert judge(history_of(ends, CONNECTED + fault), (), (), ()) == []
    assert len(judge(history_of(ends, CONNECTED), (), (), ())) == 3
    assert len(judge(history_of(ends.replace("status 1", "status 2"), CONNECTED + fault), (), (), ())) == 1

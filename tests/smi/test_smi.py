"""pympsd-smi as a command: its output and changes on a node of four devices, compared with nvidia-smi's output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_node import SMI, Node
from processes import SECONDS

from pympsd.devices.registrations import GONE, register
from pympsd.devices.state_folder import StateFolder

UUIDS = tuple(f"GPU-0000000{n}-23a2-2403-a46b-a1dfeabe3819" for n in range(4))
BUS = tuple(f"00000000:00:0{6 + n}.0" for n in range(4))


def get_printed(node: Node, *arguments: str, status: int = 0) -> str:
    """Return what it prints: with another status than 0 a message, which is on standard error."""
    done = node.smi(*arguments)
    printed, nothing = (done.stderr, done.stdout) if status else (done.stdout, done.stderr)
    assert (done.returncode, nothing) == (status, ""), printed
    return printed


def modes(node: Node) -> list[str]:
    return get_printed(node, "--query-gpu=compute_mode", "--format=csv,noheader").split()


def without_time(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("Timestamp")]


def test_the_list_names_every_device(node: Node) -> None:
    lines = [f"GPU {n}: NVIDIA H200 (UUID: {uuid})\n" for n, uuid in enumerate(UUIDS)]
    assert get_printed(node, "-L") == "".join(lines)


def test_the_compute_modes_as_recorded(node: Node) -> None:
    for word in ("compute", "COMPUTE", "Compute"):
        assert without_time(get_printed(node, "-i", "0", "-q", "-d", word)) == [
            "",
            "==============NVSMI LOG==============",
            "",
            "Driver Version                                         : 590.0",
            "CUDA Version                                           : 13.1",
            "",
            "Attached GPUs                                          : 4",
            "GPU 00000000:00:06.0",
            "    Compute Mode                                       : Default",
            "",
        ]
    assert get_printed(node, "-q", "-d", "compute").count("Compute Mode") == 4
    assert get_printed(node, "-q", "-d", "bogus", status=2) == "Failed to parse --display/-d flags\n"


def test_the_complete_report(node: Node) -> None:
    text = get_printed(node, "-i", "2", "-q")
    for line in (
        "    Product Name                                       : NVIDIA H200",
        f"    GPU UUID                                           : {UUIDS[2]}",
        "        Bus Id                                         : 00000000:00:08.0",
        "        Total                                          : 143771 MiB",
        "    Compute Mode                                       : Default",
        "    Processes                                          : None",
    ):
        assert line in text.splitlines()


def test_the_bare_table_as_recorded(node: Node) -> None:
    lines = get_printed(node, "-i", "1").splitlines()
    assert {len(line) for line in lines if line[:1] in ("|", "+")} == {91}
    assert lines[1] == "+" + "-" * 89 + "+"
    assert "Driver Version: 590.0 " in lines[2]
    assert "CUDA Version: 13.1 " in lines[2]
    for recorded in (
        "+-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|=========================================+========================+======================|",
        "|   1  NVIDIA H200                   N/A  |   00000000:00:07.0 Off |                  N/A |",
        "| N/A   N/A    N/A            N/A /  N/A  |       0MiB / 143771MiB |      0%      Default |",
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
        "|  No running processes found                                                             |",
    ):
        assert recorded in lines
    assert len(get_printed(node).splitlines()) == len(lines) + 3 * 4


def test_processes_as_recorded(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    own = register(folder, UUIDS[3], alone=False)
    name = Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode()  # may be relative
    mine, gone = os.getpid(), 1 << 22
    own.report([(mine, 516 << 20), (gone, 3 << 20)])
    try:
        table = get_printed(node).splitlines()
        shown = name if len(name) < 36 else "..." + name[-32:]
        for used, kind in ((0, "C"), (516, "M+C")):
            row = f"|    3   N/A  N/A {mine:>15} {kind:>6}   {shown:<36}{f'{used}MiB':>10} |"
            assert row in table
        assert f"|    3   N/A  N/A {gone:>15}    M+C   [Not Found]                               3MiB |" in table
        assert sum("     519MiB / 143771MiB " in line for line in table) == 1
        report = get_printed(node, "-i", "3", "-q", "-d", "PIDS").splitlines()
        assert report[-8:] == [
            "            Used GPU Memory                            : 516 MiB",
            "        GPU instance ID                                : N/A",
            "        Compute instance ID                            : N/A",
            f"        Process ID                                     : {gone}",
            "            Type                                       : M+C",
            "            Name                                       : [Not Found]",
            "            Used GPU Memory                            : 3 MiB",
            "",
        ]
        apps = get_printed(node, "--query-compute-apps=pid,process_name,used_memory", "--format=csv").splitlines()
        assert apps == [
            "pid, process_name, used_gpu_memory [MiB]",
            f"{mine}, {name}, 0 MiB",
            f"{mine}, {name}, 516 MiB",
            f"{gone}, [Not Found], 3 MiB",
        ]
        assert get_printed(node, "-i", "0", "--query-compute-apps=pid", "--format=csv,noheader") == ""
        assert node.smi("-r").returncode == 255
        assert node.smi("-i", "0", "-r").returncode == 0
    finally:
        own.end()


def test_memory_of_exited_clients_is_the_servers(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    own = register(folder, UUIDS[3], alone=False)
    own.report([(1 << 22, 3 << 20), (GONE, 516 << 20)])
    try:
        apps = get_printed(node, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        assert apps == f"{os.getpid()}, 516\n{1 << 22}, 3\n"
    finally:
        own.end()


def test_before_volta_all_memory_is_the_servers(node: Node) -> None:
    node.machine.write_text(f'[[device]]\nprofile = "P100"\nuuid = "{UUIDS[0]}"\n')
    folder = StateFolder(str(node.machine))
    folder.make()
    own = register(folder, UUIDS[0], alone=False)
    own.report([(1, 516 << 20), (2, 3 << 20)])
    fields = "--query-compute-apps=pid,used_memory"
    try:
        assert get_printed(node, fields, "--format=csv,noheader,nounits") == f"{os.getpid()}, 519\n"
    finally:
        own.end()


def test_modes_are_set_by_name_and_number(node: Node) -> None:
    assert get_printed(node, "-i", "0", "-c", "EXCLUSIVE_PROCESS") == (
        f"Set compute mode to EXCLUSIVE_PROCESS for GPU {BUS[0]}.\nAll done.\n"
    )
    assert modes(node) == ["Exclusive_Process", "Default", "Default", "Default"]
    assert "    Compute Mode                                       : Exclusive_Process\n" in get_printed(node, "-q")
    assert "E. Process |" in get_printed(node)
    assert get_printed(node, "-c", "2").count("Set compute mode to PROHIBITED") == 4
    assert modes(node) == ["Prohibited"] * 4
    assert get_printed(node, "-i", f"{UUIDS[3]},1", "-c", "0") == (
        f"Set compute mode to DEFAULT for GPU {BUS[1]}.\nSet compute mode to DEFAULT for GPU {BUS[3]}.\nAll done.\n"
    )
    assert modes(node) == ["Prohibited", "Default", "Prohibited", "Default"]
    get_printed(node, "-i", "0,1,2,3", "-c", "default")
    assert modes(node) == ["Default"] * 4
    get_printed(node, "-i", BUS[2].lower(), "-c", "3")
    assert modes(node) == ["Default", "Default", "Exclusive_Process", "Default"]


def test_a_mode_that_is_already_set_is_reported_as_recorded(node: Node) -> None:
    text = f"Compute mode is already set to DEFAULT for GPU {BUS[0]}.\nAll done.\n"
    assert get_printed(node, "-i", "0", "-c", "0") == text
    user = node.smi("-i", "0", "-c", "0", uid=1000)
    assert (user.returncode, user.stdout) == (0, text), "no error for a user"


@pytest.mark.parametrize("word", ["1", "EXCLUSIVE_THREAD"])
def test_the_retired_mode_means_the_one_that_replaced_it(node: Node, word: str) -> None:
    output = get_printed(node, "-i", "1", "-c", word)
    assert output.startswith("Warning: Exclusive_Thread was deprecated! Setting Exclusive_Process instead.\n")
    assert modes(node)[1] == "Exclusive_Process"


def test_only_root_changes_a_mode(node: Node) -> None:
    done = node.smi("-c", "3", uid=1000)
    unable = f"Unable to set the compute mode for GPU {BUS[0]}: Insufficient Permissions\n"
    assert (done.returncode, done.stderr) == (4, f"{unable}Terminating early due to previous errors.\n")
    assert modes(node) == ["Default"] * 4
    done = node.smi("-i", "0", "-r", uid=1000)
    assert (done.returncode, done.stderr) == (
        4,
        f"Unable to disable persistence mode for GPU {BUS[0]}: Insufficient Permissions\n",
    )


def test_a_user_sees_what_root_set(node: Node) -> None:
    get_printed(node, "-i", "2", "-c", "PROHIBITED")
    done = node.smi("-i", "2", "--query-gpu=compute_mode", uid=1000)
    assert done.stdout == "compute_mode\nProhibited\n"


@pytest.mark.long
def test_a_locked_folder_is_reported_and_nothing_is_reset(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    with folder.lock():
        done = node.smi("-i", "0", "-r")
        assert (done.returncode, done.stdout) == (9, "")
        assert f"{folder.path}: another process keeps it locked. Find that process" in done.stderr
        assert "fuser -v" in done.stderr
        done = node.smi("-c", "3")
        assert done.returncode == 255
        assert "keeps it locked. Find that process" in done.stderr
        assert get_printed(node, "-L").count("\n") == 4, "without processes to show, it does not look for them"
    assert modes(node) == ["Default"] * 4


def test_a_reset_is_reported(node: Node) -> None:
    assert get_printed(node, "-i", "0", "-r") == f"GPU {BUS[0]} was successfully reset.\nAll done.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-i", "7", "-q"), 6, "No devices were found\n"),
        (("-i", "7", "-c", "0"), 6, "No devices were found\n"),
        (("-i", "0,7", "-c", "3"), 6, "No devices were found\n"),
        (("-i", UUIDS[0][:12]), 6, "No devices were found\n"),
        (("-c", "7"), 2, "Invalid compute mode: 7\nTerminating early due to previous errors.\n"),
        (("-c", "9" * 5000), 2, f"Invalid compute mode: {'9' * 5000}\nTerminating early due to previous errors.\n"),
        (("-c", "bogus"), 2, "ERROR: Option bogus is invalid for -c. Please run 'pympsd-smi -h' for help.\n\n"),
        (("-c", "²"), 2, "ERROR: Option ² is invalid for -c. Please run 'pympsd-smi -h' for help.\n\n"),
        (("--query-gpu=index,bogus",), 2, 'Field "bogus" is not a valid field to query.\n\n'),
        (("--query-compute-apps=bogus",), 2, 'Field "bogus" is not a valid field to query.\n\n'),
        (("--query-gpu=index", "--format=bogus"), 2, "Format modifier is not recognized.\n"),
    ],
)
def test_refusals_as_recorded(node: Node, arguments: tuple[str, ...], status: int, message: str) -> None:
    assert get_printed(node, *arguments, status=status) == message
    assert modes(node) == ["Default"] * 4


def test_queries_as_recorded(node: Node) -> None:
    fields = "--query-gpu=index,uuid,name,memory.total,memory.used,compute_mode"
    rows = [f"{n}, {uuid}, NVIDIA H200, 143771 MiB, 0 MiB, Default\n" for n, uuid in enumerate(UUIDS)]
    header = "index, uuid, name, memory.total [MiB], memory.used [MiB], compute_mode\n"
    assert get_printed(node, fields, "--format=csv") == header + "".join(rows)
    assert get_printed(node, fields, "--format=csv,noheader") == "".join(rows)
    bare = "".join(rows).replace(" MiB", "")
    assert get_printed(node, fields, "--format=csv,noheader,nounits") == bare
    assert get_printed(node, "-i", "1", "--query-gpu=index,memory.total", "--format=csv,nounits") == (
        "index, memory.total [MiB]\n1, 143771\n"
    )
    assert get_printed(node, "-i", "0", "--query-gpu=gpu_name, count,compute_cap,pci.bus_id,memory.free") == (
        f"name, count, compute_cap, pci.bus_id, memory.free [MiB]\nNVIDIA H200, 4, 9.0, {BUS[0]}, 143155 MiB\n"
    )


def smi(machine: str, *arguments: str, program: str = SMI, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        env={"PYMPSD_EMULATED_DEVICES": machine, **settings},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_a_mode_of_a_machine_in_short_form_is_kept(tmp_path: Path) -> None:
    def on(machine: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return smi(machine, *arguments, PYMPSD_STATE_DIRECTORY=str(tmp_path))

    query = ("--query-gpu=compute_mode", "--format=csv,noheader")
    done = on("", "-c", "EXCLUSIVE_PROCESS")  # as the Kubernetes device plugin does, on the default machine
    assert (done.returncode, done.stdout) == (
        0,
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:00:06.0.\nAll done.\n",
    )
    assert on("H200", *query).stdout == "Exclusive_Process\n"
    assert on("2xH200", *query).stdout == "Exclusive_Process\nDefault\n", "the same device has the same UUID"
    assert on("2xH200", "-c", "0").returncode == 0
    assert on("", *query).stdout == "Default\n"


def test_modes_of_a_machine_in_short_form_are_roots(tmp_path: Path) -> None:
    folder = tmp_path / "pympsd-devices.state"
    folder.mkdir(mode=0o777)
    uuid = smi("H200", "--query-gpu=uuid", "--format=csv,noheader").stdout.strip()
    (folder / "modes").write_text(f"{uuid} PROHIBITED\n")
    (tmp_path / "pympsd-devices").write_text("a file that would describe it, and whose owner is not trusted")
    query = ("--query-gpu=compute_mode", "--format=csv,noheader")
    assert smi("H200", *query, PYMPSD_STATE_DIRECTORY=str(tmp_path)).stdout == "Prohibited\n"
    for file in (folder / "modes", tmp_path / "pympsd-devices"):
        os.chown(file, 10001, -1)
    assert smi("H200", *query, PYMPSD_STATE_DIRECTORY=str(tmp_path)).stdout == "Default\n"


def test_the_machine_file_is_found_without_a_variable(tmp_path: Path) -> None:
    (tmp_path / "home/.config/pympsd").mkdir(parents=True)
    (tmp_path / "home/.config/pympsd/machine.toml").write_text('[[device]]\nprofile = "A100"\n')
    (tmp_path / "config/pympsd").mkdir(parents=True)
    file = tmp_path / "config/pympsd/machine.toml"
    file.write_text('[[device]]\nprofile = "V100"\n')
    at_home = {"HOME": str(tmp_path / "home")}
    assert "A100" in smi("", "-L", **at_home).stdout
    assert "V100" in smi("", "-L", **at_home, XDG_CONFIG_HOME=str(tmp_path / "config")).stdout
    assert "P100" in smi("P100", "-L", **at_home).stdout
    file.write_text("[[device]]\nprofile = 7\n")
    done = smi("", "-L", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (done.returncode, str(file) in done.stderr) == (9, True)
    file.unlink()
    file.mkdir()
    done = smi("", "-L", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr == (
        f"pympsd-smi: the machine file {file}: Is a directory; fix it, or name another in PYMPSD_EMULATED_DEVICES\n"
    )


def test_the_short_forms() -> None:
    assert smi("2xH200", "--query-gpu=count", "--format=csv,noheader").stdout == "2\n2\n"
    assert smi("", "-L").stdout.count("\n") == 1, "one H200 by default"


def test_an_invalid_machine_is_reported_once() -> None:
    done = smi("9xNothing", "-L")
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr.startswith("pympsd-smi: PYMPSD_EMULATED_DEVICES=9xNothing:")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--list-gpu"], "pympsd-smi: there is no option --list-gpu; did you mean --list-gpus?\n"),
        (["-Q"], "pympsd-smi: there is no option -Q; did you mean -q?\n"),
        (["--query-gpus=index"], "pympsd-smi: there is no option --query-gpus=index; did you mean --query-gpu?\n"),
        (["--bogus"], "pympsd-smi: there is no option --bogus.\n"),
        (["-L=1"], "pympsd-smi: there is no option -L=1.\n"),
    ],
)
def test_a_mistyped_option_is_bad_usage(words: list[str], message: str) -> None:
    done = smi("H200", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_a_mistyped_option_of_memory_limits_is_bad_usage() -> None:
    done = smi("H200", "memory-limits", "--gett", "-i", "0", "-n", "/x")
    assert done.returncode == 2
    assert "there is no option --gett; did you mean --get?" in done.stdout + done.stderr


def test_smi_answers_under_the_vendors_name(tmp_path: Path) -> None:
    link = tmp_path / "nvidia-smi"
    link.symlink_to(SMI)
    done = smi("H200", "--bogus", program=str(link))
    assert done.stderr == "ERROR: Option --bogus is not recognized. Please run 'nvidia-smi -h'.\n\n"
    assert done.returncode == 255
    assert smi("H200", "-h", program=str(link)).stdout.startswith("nvidia-smi: shows the emulated GPUs")
    assert "PYMPSD-SMI version" in smi("H200", "--version", program=str(link)).stdout


def test_a_closed_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{SMI} | true"],
        env={"PYMPSD_EMULATED_DEVICES": "64xH200", "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_smi_does_not_import_what_only_daemons_need() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-X", "importtime", "-m", "pympsd.smi", "-L"],
        env={},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pympsd.smi.summary" in imported
    assert imported & {"trio", "structlog", "numpy", "msgspec", "asyncio", "socket", "subprocess"} == set()


@pytest.mark.parametrize("arguments", [["-L"], ["memory-limits", "--help"]])
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [SMI, *arguments], env={"PYMPSD_EMULATED_DEVICES": "H200"}, stdout=full, stderr=subprocess.PIPE, text=True
        )
    text = "pympsd-smi: standard output: No space left on device: not all could be printed\n"
    assert (done.returncode, done.stderr) == (74, text)

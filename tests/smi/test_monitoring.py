"""What monitoring and lifecycle scripts ask nvidia-smi: every field, XML, loops, dmon, pmon, topo, persistence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from emulated_node import SMI, Node
from processes import SECONDS

from pympsd.devices.registrations import register
from pympsd.devices.state_folder import StateFolder
from pympsd.smi.options import UNSUPPORTED, UNSUPPORTED_COMMANDS
from pympsd.smi.queries import DEVICE_ALIASES, DEVICE_FIELDS, PROCESS_FIELDS
from tests.smi.test_smi import BUS, UUIDS, get_printed

CSV = "--format=csv,noheader"


def test_fields_that_an_emulated_gpu_lacks_are_not_available(node: Node) -> None:
    assert get_printed(node, "-i", "0", "--query-gpu=mig.mode.current", CSV) == "[N/A]\n"
    fields = "index,persistence_mode,temperature.gpu,clocks.sm,clocks_throttle_reasons.active"
    assert get_printed(node, "-i", "1", f"--query-gpu={fields}", "--format=csv") == (
        "index, persistence_mode, temperature.gpu, clocks.current.sm [MHz], clocks_event_reasons.active\n"
        "1, [N/A], [N/A], [N/A], [N/A]\n"
    )
    assert get_printed(node, "-i", "0", "--query-gpu=utilization.encoder,power.draw", "--format=csv,nounits") == (
        "utilization.encoder [%], power.draw [W]\n[N/A], [N/A]\n"
    )


def test_the_utilization_is_that_of_all_servers_together(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    servers = [register(folder, UUIDS[3], alone=False) for _ in range(2)]
    query = ("-i", "2,3", "--query-gpu=utilization.gpu,utilization.memory", CSV)
    try:
        assert get_printed(node, *query) == "0 %, 0 %\n" * 2
        for server, percentage in zip(servers, (30, 45), strict=True):
            server.report([], percentage)
        assert get_printed(node, *query) == "0 %, 0 %\n75 %, 0 %\n"
        assert sum("|     75%      Default |" in line for line in get_printed(node).splitlines()) == 1
        report = get_printed(node, "-i", "3", "-q", "-d", "UTILIZATION").splitlines()
        assert report[-4:] == [
            "    Utilization",
            "        GPU                                            : 75 %",
            "        Memory                                         : 0 %",
            "",
        ]
        servers[0].report([], 90)
        assert get_printed(node, *query).endswith("100 %, 0 %\n")
        servers[0].end()
        assert get_printed(node, *query).endswith("45 %, 0 %\n")
    finally:
        servers[1].end()


def test_every_field_of_the_tables_is_answered(node: Node) -> None:
    names = [*DEVICE_FIELDS, *DEVICE_ALIASES]
    row = get_printed(node, "-i", "0", f"--query-gpu={','.join(names)}", "--format=csv,noheader").split(", ")
    assert len(row) == len(names) > 200
    assert get_printed(node, f"--query-compute-apps={','.join(PROCESS_FIELDS)}", CSV) == ""
    for option, fields in (("--help-query-gpu", DEVICE_FIELDS), ("--help-query-compute-apps", PROCESS_FIELDS)):
        assert set(re.findall(r'^"([^"]+)"', get_printed(node, option), re.MULTILINE)) == set(fields)


def test_known_fields_have_their_values(node: Node) -> None:
    fields = "timestamp,pci.domain,pci.bus,pci.device,memory.reserved"
    stamp, *rest = get_printed(node, "-i", "2", f"--query-gpu={fields}", CSV).strip().split(", ")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", stamp)
    assert rest == ["0x0000", "0x00", "0x08", "615 MiB"]


@pytest.mark.parametrize("field", ["bogus", "mig.mode", "clocks", "Index", "utilization.gpu [%]", ""])
def test_fields_that_nvidia_smi_lacks_are_refused(node: Node, field: str) -> None:
    refusal = f'Field "{field}" is not a valid field to query.\n\n'
    assert get_printed(node, f"--query-gpu=index,{field}", status=2) == refusal


def test_the_report_as_xml(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    own = register(folder, UUIDS[3], alone=False)
    own.report([(os.getpid(), 516 << 20)], utilization=37)
    try:
        text = get_printed(node, "-q", "-x")
        parts = ElementTree.fromstring(get_printed(node, "-i", "3", "-q", "-x", "-d", "PIDS"))
    finally:
        own.end()
    log = ElementTree.fromstring(text)
    assert text.startswith('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n')
    assert (log.tag, log.findtext("attached_gpus"), log.findtext("driver_version")) == (
        "nvidia_smi_log",
        "4",
        "590.0",
    )
    gpus = log.findall("gpu")
    assert [gpu.get("id") for gpu in gpus] == list(BUS)
    assert [gpu.findtext("uuid") for gpu in gpus] == list(UUIDS)
    assert gpus[3].findtext("fb_memory_usage/used") == "516 MiB"
    assert gpus[0].findtext("compute_mode") == "Default"
    assert gpus[0].findtext("utilization/encoder_util") == gpus[0].findtext("mig_mode/current_mig") == "N/A"
    assert [gpu.findtext("utilization/gpu_util") for gpu in gpus] == ["0 %", "0 %", "0 %", "37 %"]
    used = [entry.findtext("used_memory") for entry in gpus[3].findall("processes/process_info")]
    assert used == ["0 MiB", "516 MiB"]
    assert [entry.tag for entry in parts.findall("gpu/*")] == ["processes"]


def test_a_loop_continues_until_it_is_interrupted(node: Node) -> None:
    command = [SMI, "-i", "1", "--query-gpu=index,uuid", "--format=csv", "-lms", "10"]
    environment = {"PYMPSD_EMULATED_DEVICES": str(node.machine)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as loop:
        try:
            assert loop.stdout is not None
            lines = [loop.stdout.readline() for _ in range(4)]
            loop.send_signal(signal.SIGINT)
            assert loop.wait(SECONDS) == 130
        finally:
            loop.kill()
    assert lines == ["index, uuid\n", *[f"1, {UUIDS[1]}\n"] * 3], "the header is there once"


def test_output_goes_to_a_file(node: Node, tmp_path: Path) -> None:
    assert get_printed(node, "-L", "-f", str(tmp_path / "list")) == ""
    assert (tmp_path / "list").read_text().count("NVIDIA H200") == 4
    done = node.smi("-L", "-f", str(tmp_path / "missing/list"))
    assert (done.returncode, done.stdout) == (74, "")
    assert f"{tmp_path}/missing/list: No such file or directory" in done.stderr


def test_dmon_and_pmon_print_use(node: Node) -> None:
    folder = StateFolder(str(node.machine))
    folder.make()
    own = register(folder, UUIDS[1], alone=False)
    own.report([(os.getpid(), 516 << 20)], utilization=37)
    try:
        lines = get_printed(node, "dmon", "-s", "um", "-c", "1").splitlines()
        assert [line.split()[-9:] for line in lines[:2]] == [
            ["sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "bar1", "ccpm"],
            [*"%%%%%%", "MB", "MB", "MB"],
        ]
        assert [line.split() for line in lines[2:]] == [
            [str(n), "37" if n == 1 else "0", "0", *"----", "516" if n == 1 else "0", "-", "-"] for n in range(4)
        ]
        rows = [line.split() for line in get_printed(node, "pmon", "-s", "um", "-c", "1", "-i", "0,1").splitlines()]
        assert rows[0][1:] == ["gpu", "pid", "type", "sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "ccpm", "command"]
        assert rows[2] == ["0", *"-" * 11]
        assert [row[:11] for row in rows[3:]] == [
            ["1", str(os.getpid()), "C", "37", "0", *"----", "0", "-"],
            ["1", str(os.getpid()), "M+C", *"------", "516", "-"],
        ]
    finally:
        own.end()
    assert get_printed(node, "dmon", "-c", "2", "-i", "0", "-o", "DT").count("\n") == 4
    assert get_printed(node, "dmon", "-h").startswith("pympsd-smi: shows")
    assert "takes letters of pucvmet, not 'x'" in get_printed(node, "dmon", "-s", "x", status=2)
    assert "Option --x is not recognized" in get_printed(node, "pmon", "--x", status=255)
    assert "takes a whole number above 0, not '0'" in get_printed(node, "pmon", "-c", "0", status=2)


def test_topo_prints_the_connections(node: Node) -> None:
    rows = [line.split("\t") for line in get_printed(node, "topo", "-m").splitlines()[:5]]
    assert rows[0][:5] == ["", "GPU0", "GPU1", "GPU2", "GPU3"]
    assert [row[1:5] for row in rows[1:]] == [[" X " if n == m else "NODE" for m in range(4)] for n in range(4)]
    assert "only -m is supported" in get_printed(node, "topo", "-p2p", "r", status=3)


def test_persistence_mode_is_accepted_from_root(node: Node) -> None:
    effect = "is emulated and always ready: persistence mode has no effect.\n"
    assert get_printed(node, "-i", "1", "-pm", "1") == f"GPU {BUS[1]} {effect}All done.\n"
    assert get_printed(node, "-pm", "DISABLED").count(effect) == 4
    assert "it is 0 or 1" in get_printed(node, "-pm", "2", status=2)
    done = node.smi("-pm", "1", uid=1000)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"Unable to set persistence mode for GPU {BUS[0]}: Insufficient Permissions\n")


@pytest.mark.parametrize("word", [*UNSUPPORTED_COMMANDS, "-pl", "-lgc", "-mig", "-e", *list(UNSUPPORTED)[:4]])
def test_what_only_a_gpu_has_is_refused_by_its_name(node: Node, word: str) -> None:
    refusal = get_printed(node, word, "1", status=3)
    assert word in refusal
    assert "not supported by emulated GPUs" in refusal


# --- the daemon's machine


def get_shown(daemon_environment: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": daemon_environment["CUDA_MPS_PIPE_DIRECTORY"], **more}
    return subprocess.run([SMI, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.long(but=["2"])
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_the_machine_is_that_of_the_daemon(node: Node, protocol: str) -> None:
    state = node.directory / "state"
    state.mkdir(mode=0o777)
    daemon = node.daemon(
        "d", PYMPSD_EMULATED_DEVICES="2xA100", PYMPSD_STATE_DIRECTORY=str(state), CUDA_MPS_PROTOCOL_VERSION=protocol
    )
    client = node.client(daemon).connect()
    try:
        done = get_shown(daemon.environment, "-L")
        assert (done.returncode, done.stdout.count("NVIDIA A100"), done.stderr) == (0, 2, "")
        assert str(client.pid) in get_shown(daemon.environment, "--query-compute-apps=pid", CSV).stdout.split()
        other = get_shown(daemon.environment, "-L", PYMPSD_EMULATED_DEVICES="H100")
        assert "A100" in other.stdout
        assert "PYMPSD_EMULATED_DEVICES=H100 is not that of the daemon" in other.stderr
        assert get_shown(daemon.environment, "-c", "EXCLUSIVE_PROCESS").returncode == 0
        assert "EXCLUSIVE_PROCESS" in (state / "pympsd-devices.state/modes").read_text()
    finally:
        node.close()
    done = get_shown(daemon.environment, "-L", PYMPSD_EMULATED_DEVICES="H100")
    assert (done.stdout.count("H100"), done.stderr) == (1, ""), "the daemon has ended"


def test_a_daemon_of_another_user_gets_no_request(node: Node) -> None:
    daemon = node.daemon("d", uid=1000, PYMPSD_EMULATED_DEVICES="2xA100")
    try:
        done = get_shown(daemon.environment, "-L", PYMPSD_EMULATED_DEVICES="H100")
        assert done.stdout.count("H100") == 1
        assert "is run by user 1000, neither root nor you: ignoring it" in done.stderr
    finally:
        node.close()

"""Every line of the two logs: event name -> sentences (docs/log-lines.md is generated from this).

The default sentences are those of the MPS documents (4.3, MPS Logging Format); for an event that is not in
the documents, those of driver 580 (recorded sessions). A sentence is formatted with the event's fields.
"""

from typing import Final

from pympsd.journal.line_format import Line, same, volta

_CLIENT = "{{PID: {pid}, Context ID: {context}}}"

CONTROL_LINES: Final = {
    "daemon_starting": same("Starting control daemon using socket {socket}"),
    "daemon_connect_hint": same(
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={directory}"
    ),
    "daemon_version": same("CUDA MPS Control binary version: {version}"),
    "daemon_backend": Line("The backend is {backend}: {reason}", None),
    "daemon_setting_refused": same("{complaint}"),
    "daemon_exiting": same("Exit with status {status}"),
    "configuration_applied": Line("Applied configuration {file}, generation {generation}", None),
    "shares_set": Line("Share of each user: {shares}", None),
    "default_socket_set": Line("Set default_socket to {state} for clients in the daemon's own pipe directory", None),
    "rules_set": Line("Rules for the limits of new clients: {count}", None),
    "lines_lost": same("Could not write {count} log lines: {reason}"),
    "daemon_defect": same("The control daemon hit an internal error and continues: {reason}"),
    "connection_accepted": same("Accepting connection..."),
    "connection_refused": same("Refusing a connection: {reason}"),
    "connection_closed": same("Closing a connection from user {uid}: {reason}"),
    "connection_type_unreadable": same("Unable to read new connection type information"),
    "credentials_invalid": same("User did not send valid credentials"),
    "ui_connected": same("NEW UI"),
    "ui_closed": same("UI closed"),
    "command": same("Cmd:{line}"),
    "answer": same("{text}"),
    "user_lines_dropped": same("Dropped {count} log lines caused by user {uid}: too many in a short time"),
    "client_server_exists": same("NEW CLIENT {pid} from user {uid}: Server already exists"),
    "client_pending": same("NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list"),
    "operator_refused": Line(
        "Refusing commands from process {pid} of user {uid}: this socket is for clients only", None
    ),
    "client_refused": same("Refusing client {pid} from user {uid}: {reason}"),
    "client_setting_wrong": Line("Client {pid} of user {uid}: {problem}", None),
    "turn_pending": Line("Client {pid} of user {uid} is waiting for its turn, behind {before}", None),
    "turn_requested": Line("A server for user {uid} is waiting for its turn, behind {before}", None),
    "turn_policy_failed": Line("PYMPSD_TURN_POLICY failed ({reason}); users take turns in order of arrival", None),
    "turn_closed": Line(
        "User {uid} has waited {seconds:g} s; server {server} no longer accepts new clients from user {active}", None
    ),
    "debugged_pending": Line(
        "Client {pid} of user {uid} is being debugged; it is waiting for {count} other clients to exit", None
    ),
    "debugged_without_mps": Line("Client {pid} of user {uid} is being debugged; it runs without MPS", None),
    "client_held": Line("Client {pid} of user {uid} is waiting because {target} is being drained", None),
    "drain_started": Line("Draining {target}: {clients} clients are running, {waiting} are waiting", None),
    "drain_client_ended": Line("Draining {target}; client {pid} of user {uid}: {how}", None),
    "drain_expired": Line("Draining {target}: {count} clients are still running after {seconds:g} s", None),
    "drain_done": Line("Drained {target}: no clients remain", None),
    "drain_failed": Line("Could not drain {target}; {count} clients remain", None),
    "drain_ended": Line("No longer draining {target}", None),
    "drain_resumed": Line("Continuing to drain {target}", None),
    "server_starting": same("Starting new server {server} for user {uid}", r580_pid="server"),
    "server_spawn_failed": same("Failed to start a server for user {uid}: {reason}"),
    "server_start_failed": Line("{reason}; trying again in {seconds:g} s", None),
    "server_start_given_up": Line(
        "Giving up after {count} attempts to start a server for user {uid}: {reason}", None
    ),
    "server_ready": same("NEW SERVER {server}: Ready"),
    "server_exited": same("Server {server} exited with status {status}"),
    "server_shutdown_tried": same("Try shutting down server {server}, backoff is disabled"),
    "server_busy": same("Server {server} has {workers} active worker threads. Server will not shutdown."),
    "server_forced": same("Force shutting down server {server}"),
    "takeover_pending": Line(
        "Server {server} of user {uid} ran under the previous daemon; waiting for its report", None
    ),
    "server_taken_over": Line("Took over server {server} of user {uid} with {count} clients", None),
    "takeover_timeout": Line("Server {server} did not report within {seconds:g} s; killing it", None),
    "server_not_taken_over": Line(
        "Not taking over server {server} ({reason}); it will exit with its last client", None
    ),
    "server_ended": Line(
        "Server {server} has exited; its exit status is unknown because another daemon started it", None
    ),
    "server_refused": Line("Refusing process {pid} of user {uid}, which claims to be a server: {reason}", None),
    "server_added": same("Adding server '{name}'"),
    "server_user_set": same("Server '{name}' belongs to user {uid}"),
    "server_maximum_set": same("Maximum limits for new clients of server '{name}': {limits}"),
    "server_contains": same("Faults in SM partitions of server '{name}' affect {reach}"),
    "server_log_not_opened": same(
        "Cannot open the log of server '{name}' ({reason}); its lines go to the shared server.log"
    ),
    "server_removed": same("Removing server '{name}'"),
    "namespace_added": same("Adding namespace '{name}'"),
    "namespace_removed": same("Removing namespace '{name}'"),
    "namespace_set": same("Limits for new clients of namespace '{name}': {before} -> {limits}"),
    "cgroup_limit_set": same("Memory limit of cgroup {path} on device {device}: {limit}"),
    "cgroup_gone": same("Cgroup {path} was removed; its memory limits no longer apply"),
    "cgroup_limits_set": same("{count} cgroups now have memory limits"),
    "accounting_set": same("Feature memacct is {state}"),
    "audit_set": same("Allocations and releases of client memory are {state}"),
    "partition_added": same("Adding SM partition '{name}' on device {device}"),
    "partition_removed": same("Removing SM partition '{name}' from device {device}"),
    "namespace_lost": same("The socket of namespace '{name}' was removed; recreating it"),
    "namespace_not_opened": same("Cannot create the sockets of '{name}': {reason}"),
    "state_refused": Line("Ignoring {path}: {reason}", None),
    "state_device_gone": Line("{owner} names device {device}, which no longer exists; ignoring it", None),
    "state_not_written": Line(
        "Cannot write the state file ({reason}); if this daemon dies, its servers cannot be taken over", None
    ),
    "nvml_not_written": Line("Cannot write {file} ({reason}); NVML keeps reporting the last state written", None),
    "daemon_hands_over": Line("Handing over to another daemon; servers keep running", None),
    "trace_ends": Line("Trace {file} ends because this daemon is exiting", None),
    "client_memory_unknown": Line(
        "Cannot read clients' memory use through NVML ({reason}); trying again in {seconds} s", None
    ),
    "keeper_ended": Line("The socket keeper has exited ({reason}); starting another in {seconds:g} s", None),
    "keeper_unusable": Line("The previous daemon's keeper cannot be used ({reason}); killing it", None),
    "keeper_lacks": Line("The keeper does not hold {name}: {reason}", None),
    "client_unresponsive": Line(
        "Closing the connection of a client that did not respond to server {server}",
        None,
    ),
    "server_silent": Line(
        "All clients of server {server} have exited, but the server has not reported this for {seconds:g} s", None
    ),
    "server_overdue": same("Server {server} does not respond; killing it"),
    "driver_unknown": Line(
        "MPS server {server} of driver {version} does not use the protocol of driver 580: {reason}",
        None,
    ),
    "backend_changes": Line(
        "Switching to another backend because the protocol of this driver's MPS server is unknown", None
    ),
    "server_misbehaved": same("Protocol violation by server {server}: {reason}"),
    "quit_resumed": Line("An operator asked the previous daemon to quit; this daemon will quit instead", None),
    "quit_timeout": same("quit command issued with timeout of {seconds}"),
}

SERVER_LINES: Final = {
    "server_startup": same("Startup", r580_who="Other"),
    "server_connecting": same("Connecting to control daemon on socket: {socket}", r580_who="Other"),
    "server_initializing": same("Initializing server process", r580_who="Other"),
    "server_context_creating": volta(
        "Volta MPS: Creating server context on device {device}", "Creating server context on device {device} ({name})"
    ),
    "server_memory_shared": same("Created anonymous shared memory region {name}"),
    "server_version": same("CUDA MPS Server for Linux/Unix. Binary version: {version}"),
    "server_driver": same("Display Driver version: {version}"),
    "server_backend": Line("Device backend: {backend}", None),
    "server_thread_percentage": same("Active Threads Percentage set to {percentage}"),
    "server_memory_limit": same("Device pinned memory limit for device {device} set to {limit:#x} bytes"),
    "server_priority": same("Server Priority set to {priority}"),
    "server_static": same("Static partitioning mode enabled"),
    "server_started": same("Server has started"),
    "server_failed": same("MPS server failed to start"),
    "server_failed_reason": same("{reason}"),
    "device_unregistered": same(
        "Device {device} is in use, but cannot be registered; other servers may open it exclusively: {reason}"
    ),
    "devices_not_registered": Line("pympsd-smi and other servers cannot see this server: {reason}", None),
    "device_registered": Line("Device {device} is now registered", None),
    "server_shutdown_notified": same("Server has been notified to shutdown"),
    "server_shutdown_busy": same("Server was unable to shutdown due to {workers} active clients"),
    "server_waiting": same("Waiting for current clients to finish"),
    "server_exiting": same("Exiting"),
    "server_orphaned": Line("Lost the link to the control daemon; exiting now with {count} clients connected", None),
    "server_taken_over": Line("A new control daemon took over this server", None),
    "server_dismissed": Line("A new control daemon did not take over this server: {reason}", None),
    "server_defect": same("The server hit an internal error with client {pid} and continues: {reason}"),
    "client_requested": same(f"Received new client request for {_CLIENT}"),
    "client_connected": Line("New client {pid} connected", f"Client {_CLIENT} connected"),
    "client_limits": same("Limits of client {pid} of user {uid}: {limits}"),
    "client_worker": same(f"Creating worker thread for client {_CLIENT}"),
    "client_receive_failed": Line(
        None, f"Server failed to recevie command with status 806, assuming client {_CLIENT} exit"
    ),
    "client_disconnected": Line("Client {pid} disconnected", "Client process {pid} disconnected"),
    "client_priority": same("Client Priority set to {priority}"),
    "client_refused": same("Refusing client {pid}: {reason}"),
    "shared_memory_failed": same("MPS Server failed to create/open SHM segment."),
    "client_misbehaved": same("Protocol violation by client {pid}: {reason}"),
    "client_devices_none": same("Invalid set of visible devices.", r580_who="Client", r580_pid="pid"),
    "client_devices_invalid": same("Invalid CUDA_VISIBLE_DEVICES.", r580_who="Client", r580_pid="pid"),
    "client_devices_entry": same(
        "Client requested {entry} which is not a valid GPU ID in the MPS visible set of devices",
        r580_who="Client",
        r580_pid="pid",
    ),
    "client_devices_hint": same(
        "Please set CUDA_VISIBLE_DEVICES with a GPU ID less than {count} or consider using UUIDs.",
        r580_who="Client",
        r580_pid="pid",
    ),
    "client_setting_wrong": Line("Client {pid}: {problem}", None),
    "client_limit_ignored": same("Ignoring {entry} in {variable}: {reason}", r580_who="Client", r580_pid="pid"),
    "client_limit_refused": same("Refusing {entry} in {variable}: {reason}", r580_who="Client", r580_pid="pid"),
    "connection_limit": same("Failed to accept new client. Maximum number of clients ({most}) reached."),
    "context_connected": Line(None, f"Client {_CLIENT} connected"),
    "context_device": same("Device {name} (uuid {uuid}) is associated"),
    "context_active": volta(
        "Volta MPS: status of client {{{pid}, {context}}} is ACTIVE", f"Status of client {_CLIENT} is ACTIVE"
    ),
    "context_inactive": volta(
        "Volta MPS: status of client {{{pid}, {context}}} is INACTIVE", f"Status of client {_CLIENT} is INACTIVE"
    ),
    "context_exit": volta(
        "Client {{{pid}, {context}}} exit", f"Client {_CLIENT} exiting. Number of active client contexts is {{left}}."
    ),
    "context_exit_in_reset": volta(
        "Client {{{pid}, {context}}} exit",
        f"Client {_CLIENT} exiting. Worker is in reset. Number of active client contexts is {{left}}.",
    ),
    "context_refused": same(f"Failed to accept client {_CLIENT} with status {{status}}"),
    "context_refused_reason": Line("{reason}", None),
    "partition_refused": Line("Client {pid} {reason}", None),
    "context_faulted": same("Client {{PID: {pid}, Context: {context}}} encountered a fatal GPU error."),
    "context_faulted_reason": Line("{reason}", None),
    "fault_handling": volta(
        "Volta MPS: Server is handling a fatal GPU error.", "Server is handling a fatal GPU error."
    ),
    "fault_in_partition": volta(
        "Volta MPS: Server is handling a fatal GPU error in SM partition '{name}'.",
        "Server is handling a fatal GPU error in SM partition '{name}'.",
    ),
    "fault_on_device": Line(None, f"Client {_CLIENT} on device {{device}} to be torn down"),
    "fault_process": Line(None, "All clients belonging to error trigging process {pid} will be torn down"),
    "fault_in_process": Line(None, f"Client {_CLIENT} on the error-trigging process {{pid}} to be torn down"),
    "fault_devices": volta("Volta MPS: The following devices", "The following devices will be reset:"),
    "fault_device": volta("{device}", "{device}"),
    "fault_clients": volta(
        "Volta MPS: The following clients have a sticky error set:",
        "The following client process have a sticky error set:",
    ),
    "fault_client": volta("{pid}", "{pid}"),
    "fault_ends_server": same("A fatal GPU error on a pre-Volta device ends the server"),
    "client_refused_in_teardown": same(f"Server teardown in progress. Refusing to accept new client {_CLIENT}"),
    # The documents' server recreates a device's context when all clients hit by a fault have gone; driver 580 drops
    # it with the device's last context, and recreates it for the next client.
    "server_context_destroyed": volta("Volta MPS: Destroy server context on device {device}", None),
    "server_context_recreating": volta("Volta MPS: Creating server context on device {device}", None),
    "server_context_dropped": Line(None, "Destroy server context on device {device} ({name})"),
    "server_context_remade": Line(None, "Creating server context on device {device} ({name})"),
    "server_context_failed": same("Cannot reset device {device}: {reason}"),
    "devices_queried": same("Received device query command. There are {count} devices"),
    "termination_requested": same(f"MPS server requesting client {_CLIENT} to exit"),
    "context_terminated": volta("Volta MPS: status of client {{{pid}, {context}}} is INACTIVE", None),
    "termination_succeeded": same("Client termination succeeded."),
    "termination_unknown": same(
        "Client termination request failed: There is no active client context found for process {pid}."
    ),
    "termination_failed": same("Client termination failed with invalid device context."),
    "memory_short": same(
        "Device {uuid} is short of memory: client {pid} is within its soft limit and needs {short} more bytes "
        "than are free"
    ),
    "memory_audited": same(
        "memacct: client {pid} namespace {namespace} device {uuid} {change} used={used} limit={limit}"
    ),
    "client_evicted": same("Evicted client {pid} ({group}): {excess} MiB above its soft limit"),
    "eviction_overdue": same("Client {pid} did not exit within {seconds:.0f} s; its memory has not been freed"),
    "no_client_above_soft_limit": same("No client is above its soft limit"),
    "eviction_insufficient": same(
        "Evicting up to {count} clients above their soft limits would not free enough memory"
    ),
    "executor_started": Line("Started executor {pid} for device {device}", None),
    "executor_workers": Line("Executor {pid}, command stream workers: {workers}", None),
    "executor_user": Line("Executor {pid} serves user {uid}", None),
    "executor_partition": Line("Executor {pid} serves SM partition '{name}'", None),
    "executor_abandoned": Line(
        "Stopping executor {pid} of device {device}, which has no clients but still runs kernels of exited clients",
        None,
    ),
    "executor_silent": same("Executor {pid} of device {device} does not respond; killing it"),
    "termination_by_reset": Line(
        "Resetting device {device} because a kernel of process {pid} is still running and cannot be stopped", None
    ),
    "termination_overdue": same("Client termination of process {pid} did not finish within {seconds:.0f} s."),
    "executor_not_started": Line("{reason}", None),
    "trace_without_device": same("Trace omits device {device}: {reason}"),
    "executor_ended": Line("Executor {pid} of device {device} ended with status {status}", None),
    "executor_killed": Line("{reason}", None),
    "records_dropped": same("Dropped {count} log lines: too many in a short time"),
    "lines_lost": same("Could not write {count} log lines: {reason}"),
    "fifo_line": same("{text}"),
    # For a line of the driver's own server for which this catalogue has no event.
    "vendor_line": same("{text}"),
}

RENAMED_SERVER_EVENTS: Final = {
    "server_taken_in": "server_taken_over",
    "nobody_above_soft_limit": "no_client_above_soft_limit",
}
"""Former names of events, which servers of earlier versions still send. A daemon that has taken over such a server
logs the events by their present names.
"""

"""Every line of the two logs: event name -> sentence, in the forms of the MPS documents (4.3, MPS Logging Format).

Where the documents give no text for an event the sentence is what driver 580 writes. A sentence is filled with the
event's fields.
"""

from __future__ import annotations

from typing import Final

CONTROL_LINES: Final = {
    "daemon_starting": "Starting control daemon using socket {socket}",
    "daemon_connect_hint": "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={directory}",
    "daemon_version": "CUDA MPS Control binary version: {version}",
    "daemon_setting_refused": "{complaint}",
    "daemon_exiting": "Exit with status {status}",
    "daemon_defect": "The control daemon met a defect of its own and goes on: {reason}",
    "connection_accepted": "Accepting connection...",
    "connection_refused": "Refusing a connection: {reason}",
    "connection_type_unreadable": "Unable to read new connection type information",
    "credentials_invalid": "User did not send valid credentials",
    "ui_connected": "NEW UI",
    "ui_closed": "UI closed",
    "command": "Cmd:{line}",
    "answer": "{text}",
    "client_server_exists": "NEW CLIENT {pid} from user {uid}: Server already exists",
    "client_pending": "NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list",
    "client_refused": "Refusing client {pid} from user {uid}: {reason}",
    "server_starting": "Starting new server {server} for user {uid}",
    "server_spawn_failed": "Failed to start a server for user {uid}: {reason}",
    "server_ready": "NEW SERVER {server}: Ready",
    "server_exited": "Server {server} exited with status {status}",
    "server_shutdown_tried": "Try shutting down server {server}, backoff is disabled",
    "server_busy": "Server {server} has {clients} active worker threads. Server will not shutdown.",
    "server_forced": "Force shutting down server {server}",
    "server_misbehaved": "Server {server} broke the conversation: {reason}",
    "quit_timeout": "quit command issued with timeout of {seconds}",
}

SERVER_LINES: Final = {
    "server_startup": "Startup",
    "server_connecting": "Connecting to control daemon on socket: {socket}",
    "server_initializing": "Initializing server process",
    "server_context_creating": "Creating server context on device {device} ({name})",
    "server_version": "CUDA MPS Server for Linux/Unix. Binary version: {version}",
    "server_driver": "Display Driver version: {version}",
    "server_backend": "The devices are {backend}",
    "server_thread_percentage": "Active Threads Percentage set to {percentage}",
    "server_priority": "Server Priority set to {priority}",
    "server_started": "Server has started",
    "server_failed": "MPS server failed to start",
    "server_failed_reason": "{reason}",
    "server_shutdown_notified": "Server has been notified to shutdown",
    "server_shutdown_busy": "Server was unable to shutdown due to {clients} active clients",
    "server_waiting": "Waiting for current clients to finish",
    "server_exiting": "Exiting",
    "server_defect": "The server met a defect of its own with client {pid} and goes on: {reason}",
    "server_orphaned": "The control daemon is gone",
    "client_connected": "New client {pid} connected",
    "client_disconnected": "Client {pid} disconnected",
    "client_misbehaved": "Client {pid} broke the conversation: {reason}",
    "context_device": "Device {name} (uuid {uuid}) is associated",
    "context_active": "Volta MPS: status of client {{{pid}, {context}}} is ACTIVE",
    "context_inactive": "Volta MPS: status of client {{{pid}, {context}}} is INACTIVE",
    "context_exit": "Client {{{pid}, {context}}} exit",
    "context_refused": "Failed to accept client {{PID: {pid}, Context ID: {context}}} with status {status}: {reason}",
    "context_faulted": "Client {{PID: {pid}, Context: {context}}} encountered a fatal GPU error: {reason}",
    "executor_started": "Device {device} is run by process {pid}",
    "executor_ended": "Process {pid} of device {device} ended with status {status}",
    "records_dropped": "{count} log lines were dropped: too many at once",
    "fifo_line": "{text}",
}


def sentence(lines: dict[str, str], event: str, fields: dict[str, object]) -> str:
    """Return the sentence of an event; KeyError for an event that is not in the catalogue or a missing field."""
    return lines[event].format(**fields)

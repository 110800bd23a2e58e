"""The systemd unit of a runtime (systemd.service(5), systemd.exec(5))."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATE = Path("/var/lib")
"""Where `StateDirectory=` lies (systemd.exec(5))."""

_SERVICE: Final = """\
[Unit]
Description=skep, the digital twins of this gateway ({name})
Wants=network-online.target
After=network-online.target time-sync.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=2
# A start may have stores to bring up to date; a loop that hangs is started anew.
TimeoutStartSec=15min
TimeoutStopSec=15
# The runtime ends its own processes.
KillMode=mixed
WatchdogSec=60
LimitNOFILE=65536
UMask=0077
Environment=PYTHONUNBUFFERED=1
"""

_OF_ITS_OWN: Final = """\
# A user that exists while it runs; what it owns below /var/lib stays.
DynamicUser=yes
User={name}
StateDirectory={name}
StateDirectoryMode=0700
"""

_GIVEN: Final = """\
User={user}
ReadWritePaths={home}
RemoveIPC=yes
PrivateTmp=yes
"""

_HARDENED: Final = """\
# The network and its folder are all it needs. A port below 1024 takes, in a drop-in file (systemctl edit):
# AmbientCapabilities=CAP_NET_BIND_SERVICE, CapabilityBoundingSet=CAP_NET_BIND_SERVICE and PrivateUsers=no.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome={home_access}
PrivateDevices=yes
PrivateUsers=yes
DevicePolicy=closed
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

_OF_A_USER: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit named `{name}.service` that runs the data folder `home` with the program `skep`.

    `user` None: one of its own, whose folder is `/var/lib/{name}`. `is_users`: for the service manager of a user's
    login instead of the machine's.
    """

    name: str
    program: Path
    home: Path
    user: str | None = None
    is_users: bool = False

    @property
    def file_name(self) -> str:
        return f"{self.name}.service"

    @property
    def text(self) -> str:
        """The unit file."""
        command = f"{_quoted(self.program)} run --home {_quoted(self.home)}"
        unit = _SERVICE.format(name=_escaped(self.name), command=command)
        if self.is_users:
            return unit + _OF_A_USER
        below_home = any(self.program.is_relative_to(each) for each in ("/home", "/root", "/run/user"))
        if self.user is None:
            unit += _OF_ITS_OWN.format(name=self.name)
        else:
            unit += _GIVEN.format(user=self.user, home=_quoted(self.home))
            below_home = below_home or any(self.home.is_relative_to(each) for each in ("/home", "/root", "/run/user"))
        return unit + _HARDENED.format(home_access="read-only" if below_home else "yes")


def _escaped(text: str) -> str:
    """With nothing that systemd would replace by something else (systemd.unit(5), specifiers)."""
    return text.replace("%", "%%")


def _quoted(path: Path) -> str:
    """As one word (systemd.syntax(7), quoting; systemd.service(5), command lines)."""
    text = _escaped(str(path)).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if any(each in text for each in " '\"\\;") else text

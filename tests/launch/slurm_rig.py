"""A real Slurm of its own for a test: munged, slurmctld and several slurmd on this machine, on free ports.

Everything lives in one temporary folder and listens on the loopback; `stop` ends exactly the processes that
`start` began, by their ids. `why_not` says why it cannot run here, or nothing.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from paceline.ports import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def why_not() -> str:
    """Why this machine cannot run a Slurm for a test; empty if it can."""
    missing = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)} (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "slurmd starts jobs as their users, which takes root"
    return ""


class Slurm:
    """One controller and `nodes` node daemons, n0, n1, ..., each with `cpus` processors and `gpus` GPUs."""

    def __init__(self, folder: Path, nodes: int = 3, cpus: int = 4, gpus: int = 0) -> None:
        self.folder, self.nodes, self.cpus, self.gpus = folder, nodes, cpus, gpus
        self.conf = folder / "slurm.conf"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.conf)}

    def start(self) -> "Slurm":
        self._write()
        socket_path = self.folder / "munge.socket"
        self._spawn(
            "munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key", f"--socket={socket_path}",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed", "--num-threads=2",
        )  # fmt: skip
        self._await(socket_path.exists, "munged")
        self.start_controller()
        for i in range(self.nodes):
            self.start_node(i)
        self._await(self._all_idle, "slurmd")
        return self

    def start_controller(self) -> None:
        self._spawn("slurmctld", "-D", "-f", str(self.conf))
        self._await(lambda: self.command("scontrol", "ping").returncode == 0, "slurmctld")

    def stop_controller(self) -> None:
        controller = self.processes.pop("slurmctld")
        controller.terminate()
        controller.wait(20)

    def start_node(self, i: int) -> None:
        self._spawn("slurmd", "-D", "-f", str(self.conf), "-N", f"n{i}", name=f"n{i}")

    def command(self, *arguments: str, timeout_s: float = 20.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def stop(self) -> None:
        if "slurmctld" in self.processes:
            self.command("scancel", "--state=PENDING", "--user=root")
            self.command("scancel", "--signal=KILL", "--user=root")
            deadline = time.monotonic() + 10
            while self.command("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.2)
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.processes.clear()

    def _all_idle(self) -> bool:
        states = self.command("sinfo", "-h", "-N", "-o", "%T").stdout.split()
        return len(states) == self.nodes and set(states) == {"idle"}

    def _spawn(self, *arguments: str, name: str = "") -> None:
        name = name or arguments[0]
        with (self.folder / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                arguments, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def _await(self, ready: object, what: str) -> None:
        assert callable(ready)
        deadline = time.monotonic() + 40
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    told = (self.folder / f"{name}.out").read_text(errors="replace")[-1500:]
                    self.stop()
                    raise RuntimeError(f"{name} ended with {process.returncode}: {told}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{what} was not ready within 40 s")
            time.sleep(0.1)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        host = socket.gethostname()
        control, *ports = (free_port() for _ in range(1 + self.nodes))
        gres = [f"Gres=gpu:{self.gpus}" if self.gpus else ""]
        lines = [
            "ClusterName=paceline",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={control}",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.folder}/munge.socket",
            "SlurmUser=root",
            "SlurmdUser=root",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdLogFile={self.folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "ReturnToService=0",
            "SlurmctldTimeout=30",
            "SlurmdTimeout=10",
            "KillWait=2",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,bf_interval=1,defer_batch",
            "SchedulerType=sched/backfill",
            "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none",
            "SlurmdParameters=config_overrides",
        ]
        if self.gpus:
            lines.append("GresTypes=gpu")
            entries = []
            for i in range(self.nodes):
                for g in range(self.gpus):
                    device = self.folder / f"gpu-n{i}-{g}"
                    device.touch()
                    entries.append(f"NodeName=n{i} Name=gpu File={device}")
            (self.folder / "gres.conf").write_text("\n".join(entries) + "\n")
        lines += [
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} {gres[0]}"
            for i, port in enumerate(ports)
        ]
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "state").mkdir(exist_ok=True)
        self.conf.write_text("\n".join(lines) + "\n")

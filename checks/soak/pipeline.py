"""The pipeline of the soak: three real stages with a proxy in front of each, and the gauges that must end at 0."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from checks.soak.memory import MemoryLog, sample_tree

from omni_proto.pod_contract import StageMetric
from support.machine.tcp_proxy import TcpProxy
from support.processes.stage_processes import StageProcess, chain_configs, pick_chain_ports

MODEL = {"maxModelLen": 1024, "maxNumSeqs": 8, "dtype": "float32", "kvCacheMemoryMib": 64, "enforceEager": True}
TIMEOUTS = {"step": 10.0, "drainNotice": 0.5, "request": 60.0}
IDLE_S = 20.0
GAUGES = (StageMetric.INFLIGHT_REQUESTS, StageMetric.INFLIGHT_BYTES)


class SoakPipeline:
    """thinker -> talker -> token2wav. Each stage can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.proxies: dict[str, TcpProxy] = {}
        self.processes: dict[str, StageProcess] = {}
        self.restarts: Counter[str] = Counter()

    def start(self) -> None:
        """Writes the checkpoint, starts the stages and waits until they are ready."""
        from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

        checkpoint = write_tiny_checkpoint(self._folder / "model", dtype="float32")
        ports = pick_chain_ports()
        self.proxies = {stage: TcpProxy(f"127.0.0.1:{port}") for stage, port in ports.items()}
        configs = chain_configs(
            ports,
            targets={stage: proxy.target for stage, proxy in self.proxies.items()},
            model={"path": str(checkpoint)},
            engineArgs=MODEL,
            timeouts=TIMEOUTS,
        )
        self.processes = {stage: StageProcess([config], self._folder) for stage, config in configs.items()}
        for process in self.processes.values():
            process.start(wait=False)
        for process in self.processes.values():
            process.wait_ready()

    def restart(self, stage: str) -> None:
        """Ends the remaining processes of a stage and starts it again on its port."""
        self.processes[stage].kill()
        self.processes[stage].start()
        self.restarts[stage] += 1

    def close(self) -> None:
        """Ends all stages and proxies."""
        for process in self.processes.values():
            process.kill()
        for proxy in self.proxies.values():
            proxy.close()

    def sample_memory(self, log: MemoryLog) -> None:
        """Adds the current resident memory of every stage's processes to the log."""
        for stage, process in self.processes.items():
            log.add(stage, sample_tree(process.pid, time.time()))

    def leftovers(self) -> list[str]:
        """Returns the gauges of requests and bytes that are not 0 within IDLE_S although no client sends anything."""
        deadline = time.monotonic() + IDLE_S
        while True:
            left = [
                f"{stage}: {name} is {value:g}"
                for stage, process in self.processes.items()
                for name in GAUGES
                if (value := process.metric(stage, name))
            ]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

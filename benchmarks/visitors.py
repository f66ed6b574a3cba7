"""Many visitors of one playground at once: are there errors, are memories mixed, and how long do they wait?

    python benchmarks/visitors.py --visitors 20 --seconds 60 --out results/play/visitors.json

Starts `kanerva play` in a process of its own. Each visitor writes images of its own seed, damages one, recalls it
by two methods, dreams, draws a map, and begins again. After every round it compares all that the server shows with
what it wrote, and asks for an image that it has not written.
"""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

Times = dict[str, list[float]]


class Visitor(threading.Thread):
    """One visitor, until the time is up."""

    def __init__(self, port: int, number: int, until: float) -> None:
        super().__init__(daemon=True)
        self.port, self.number, self.until = port, number, until
        self.random = random.Random(number)
        self.times: Times = defaultdict(list)
        self.steps: list[float] = []
        self.first: list[float] = []
        self.errors: list[str] = []
        self.mixed = self.busy = self.rounds = 0
        self.session = ""

    def ask(self, job: str, **body: Any) -> dict[str, Any] | None:
        """The last event of a job; None where the line was full. Also notes the time between two of its events."""
        start = time.monotonic()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)) as connection:
            connection.request("POST", f"/api/{job}", json.dumps(body), {"X-Session": self.session})
            answer = connection.getresponse()
            event, last, second = {}, 0.0, False
            while line := answer.readline():
                event, now = json.loads(line), time.monotonic()
                if job == "recall" and event.get("event") == "step" and event["step"] == event["column"] == 1:
                    self.first += [now - start] if not second else []
                    second = True
                if last:
                    self.steps.append(now - last)
                last = 0.0 if event.get("event") == "waiting" else now  # waiting in line is no step
        self.times[job].append(time.monotonic() - start)
        if answer.status == 503:
            self.busy += 1
            time.sleep(0.5)
            return None
        if answer.status != 200 or event.get("event") == "error":
            self.errors.append(f"{job}: {answer.status} {event.get('error')}")
            return None
        return event

    def run(self) -> None:
        try:
            self.session = (self.ask("session") or {})["session"]
            while time.monotonic() < self.until:
                self.round()
                self.rounds += 1
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def round(self) -> None:
        """Write, recall, look inside, dream, map; then compare."""
        seed, count = 1000 * self.number + self.rounds, self.random.randint(3, 8)
        self.ask("clear")
        own = self.ask("pick", set="glyphs", count=count, classes=count, seed=seed)
        others = self.ask("pick", set="glyphs", count=1, classes=1, seed=seed + 500_000)
        if own is None or others is None or self.ask("write", images=own["images"]) is None:
            return
        cue = self.ask("damage", image=own["images"][0], kind="flips", amount=0.1, seed=seed)
        if cue is not None:
            self.ask(
                "recall", image=cue["image"], methods=["least-squares", self.random.choice(["descent", "cue"])]
            )
        self.ask(self.random.choice(["dream", "chain"]), n=4, steps=8, method="descent", index=0)
        if count >= 3:
            self.ask("map", three=[0, 1, 2], grid=15)
        shown = self.ask("show")
        mine, theirs = (
            self.ask("contains", image=own["images"][-1]),
            self.ask("contains", image=others["images"][0]),
        )
        self.mixed += shown is not None and shown["stored"] != own["images"]
        self.mixed += mine is not None and mine["times"] != 1
        self.mixed += theirs is not None and theirs["times"] != (others["images"][0] in own["images"])


def memory(pid: int) -> float:
    """The resident memory of a process, in MB; 0 where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: the median, what one in twenty takes or more, and the longest."""
    if not seconds:
        return {"count": 0}
    cuts = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
    return {
        "count": len(seconds),
        "median": round(1000 * statistics.median(seconds), 1),
        "p95": round(1000 * cuts[-1], 1),
        "most": round(1000 * max(seconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    command = [sys.executable, "-m", "kanerva", "play", "omniglot", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            port = next(int(line.split("/")[2].split(":")[1]) for line in server.stderr if line.startswith("http"))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            result = visit(port, server.pid, given.visitors, given.seconds)
        finally:
            server.terminate()
    print(json.dumps(result, indent=1))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    if result["errors"] or result["mixed"]:
        sys.exit("visitors: there were errors, or memories were mixed")


def visit(port: int, pid: int, count: int, seconds: float) -> dict[str, Any]:
    """Let visitors in, and say how they fared."""
    before = memory(pid)
    visitors = [Visitor(port, number, time.monotonic() + seconds) for number in range(count)]
    for visitor in visitors:
        visitor.start()
    grown = []
    while any(visitor.is_alive() for visitor in visitors):
        time.sleep(0.5)
        grown.append(memory(pid))
    times: Times = defaultdict(list)
    for visitor in visitors:
        for job, some in visitor.times.items():
            times[job] += some
    return {
        "visitors": count,
        "seconds": seconds,
        "rounds": sum(visitor.rounds for visitor in visitors),
        "requests": sum(map(len, times.values())),
        "errors": [error for visitor in visitors for error in visitor.errors],
        "mixed": sum(visitor.mixed for visitor in visitors),
        "turned away": sum(visitor.busy for visitor in visitors),
        "memory in MB": {
            "before": round(before),
            "half way": round(grown[len(grown) // 2]),
            "most": round(max(grown)),
            "end": round(grown[-1]),
        },
        "ms to the first step of descent": quantiles([one for visitor in visitors for one in visitor.first]),
        "ms between events": quantiles([step for visitor in visitors for step in visitor.steps]),
        "ms": {job: quantiles(some) for job, some in sorted(times.items())},
    }


if __name__ == "__main__":
    main()

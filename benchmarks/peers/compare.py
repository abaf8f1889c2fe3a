"""Compares decode and prefill of a shape of Qwen on two pinned threads, and writes a table with the ratios.

  python compare.py [--shape 0.5b|1.5b|30b-a3b] [--weights bf16|int8|int4|GGUF FILE] [--rounds 3] [--out ../results/cpu-bf16.md] [--stop-pid PID] name=command …

All peers (protocol.py) are loaded first. In each round every task runs on one peer after the other, so that noise of other
processes affects all of them. The table has the medians over the rounds. Commands are split at spaces. See README.md.
"""

import argparse
import datetime
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Weights of the block matrices without experts and of the head (in millions), layers, query heads and head size.
SHAPES = {"0.5b": (357.8, 136.1, 24, 14, 64), "1.5b": (1310.3, 233.4, 28, 12, 128), "30b-a3b": (76.5, 311.2, 4, 32, 128)}
# Weights of an expert of each layer (in millions), experts, and how many of them a token uses.
EXPERTS = {"30b-a3b": (4.72, 128, 8)}
TITLES = {"0.5b": "Qwen2.5-0.5B", "1.5b": "Qwen2.5-1.5B", "30b-a3b": "Qwen3-30B-A3B (cut to 4 layers)"}
BITS = {"bf16": (16, 16), "int8": (8.125, 8.125), "int4": (4.25, 8.125)}  # of block matrices and of the head, as Capstan packs them
TASKS = [
    ("decode, 1 stream", {"op": "decode", "streams": 1, "context": 128, "tokens": 40}),
    ("decode, 4 streams", {"op": "decode", "streams": 4, "context": 128, "tokens": 32}),
    ("decode, 8 streams", {"op": "decode", "streams": 8, "context": 128, "tokens": 32}),
    ("prefill, 512 tokens", {"op": "prefill", "tokens": 512}),
]
MAX_STOPPED_S = 30
MAX_FOREIGN_SHARE = 0.06  # share of the machine's time that other processes may use; above it a measurement is repeated
MAX_TRIES = 1000


class PausedProcess:
    """A process that is stopped during measurements. A watchdog continues it if this script dies."""

    def __init__(self, pid):
        self.pid, self.since, self.total = pid, None, 0.0

    def stop(self):
        if self.pid is None or self.since is not None:
            return
        subprocess.Popen(["sh", "-c", f"sleep {MAX_STOPPED_S + 8}; kill -CONT {self.pid}"], start_new_session=True)
        self.send(signal.SIGSTOP)
        self.since = time.time()

    def resume(self):
        if self.since is not None:
            self.send(signal.SIGCONT)
            self.total += time.time() - self.since
            self.since = None

    def send(self, signal_number):
        try:
            if self.pid is not None:
                os.kill(self.pid, signal_number)
        except ProcessLookupError:
            self.pid = None  # the process has ended


def machine_ticks():
    """Returns (busy, total) ticks over all processors."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def process_ticks(pids):
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except (FileNotFoundError, ProcessLookupError):
            pass  # the process has ended
    return total


def foreign_share(pids, work):
    """Runs `work`. Returns its result and the share of the machine that processes other than `pids` used meanwhile."""
    busy, total = machine_ticks()
    own = process_ticks(pids)
    result = work()
    busy, total = machine_ticks()[0] - busy, machine_ticks()[1] - total
    return result, max(0, busy - (process_ticks(pids) - own)) / max(total, 1)


class Peer:
    def __init__(self, command):
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.title = self.read()["peer"]

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"a peer exited: {self.process.args}")

    def run(self, task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return self.read()["tokens_per_s"]

    def measure(self, task, paused, is_disturbed):
        """Repeats until other processes leave the machine idle. Returns the least disturbed result after MAX_TRIES."""
        if is_disturbed:
            return tuple(reversed(foreign_share([self.process.pid], lambda: self.run(task))))
        results = []
        for _ in range(MAX_TRIES):
            if foreign_share([self.process.pid, paused.pid], lambda: time.sleep(1))[1] <= MAX_FOREIGN_SHARE:
                paused.stop()
                speed, foreign = foreign_share([self.process.pid], lambda: self.run(task))
                paused.resume()
                results.append((foreign, speed))
                if foreign <= MAX_FOREIGN_SHARE:
                    break
            time.sleep(3)
        if not results:
            raise SystemExit("other processes never left the machine idle")
        return min(results)

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


def limits():
    command = [ROOT / "build/benchmarks/ops", "--limits", "1", "--threads", os.environ["PEER_THREADS"], "--clock", os.environ["PEER_CLOCK"]]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Model:
    """What the peers run. `weights` is a number type or a GGUF file."""

    def __init__(self, shape, weights):
        self.blocks, self.head, self.layers, self.heads, self.head_dim = SHAPES[shape]
        self.expert, self.num_experts, self.used_experts = EXPERTS.get(shape, (0, 0, 0))
        self.shape, self.weights = shape, weights if weights in BITS else Path(weights).stem
        self.is_bf16 = weights == "bf16"
        if weights in BITS:
            self.block_bits, self.head_bits = BITS[weights]
        else:  # the embedding of a mixture has a matrix besides the head
            all_weights = self.blocks + self.layers * self.num_experts * self.expert + self.head * (2 if self.num_experts else 1)
            self.block_bits = self.head_bits = Path(weights).stat().st_size * 8 / 1e6 / all_weights

    def peak(self, bounds):
        return bounds["bf16_gflop_per_s" if self.is_bf16 else "int8_gop_per_s"]

    def read_bytes(self, streams):
        """Bytes of the weights that a decode step reads. The experts of different streams are taken as independent."""
        share = 1 - (1 - self.used_experts / self.num_experts) ** streams if self.num_experts else 0
        blocks = self.blocks + self.layers * self.expert * self.num_experts * share
        return (blocks * self.block_bits + self.head * self.head_bits) / 8 * 1e6

    def limit(self, task, bounds):
        """Tokens per second."""
        if task["op"] == "decode":
            return task["streams"] * bounds["read_gb_per_s"] * 1e9 / self.read_bytes(task["streams"])
        tokens = task["tokens"]
        attention = self.layers * 4 * self.heads * self.head_dim * tokens * (tokens + 1) / 2
        blocks = self.blocks + self.layers * self.expert * self.used_experts
        return tokens / (2 * blocks * 1e6 * tokens / self.peak(bounds) + attention / bounds["bf16_gflop_per_s"]) * 1e9


def best_bounds(peers, speeds, bounds, model):
    """The fastest rates that the run has shown, by a test of the machine or by an engine: what is faster than a test proves that the machine can be. So no engine exceeds its limit."""
    rates = [name for name, value in bounds[0].items() if not isinstance(value, str)]
    best = {name: max(1e-9, *(b[name] for b in bounds)) for name in rates}  # 0: no test for this machine
    for title, task in TASKS:
        fastest = max(statistics.median(speeds[name, title]) for name in peers)
        excess = max(1, fastest / model.limit(task, best))
        for name in best:
            if (task["op"] == "decode") == (name == "read_gb_per_s"):
                best[name] *= excess
    return best


def table(peers, speeds, bounds, rounds, shares, how, model):
    best = lambda title: max(statistics.median(speeds[name, title]) for name in peers if name != "capstan")
    names, limits_of_run = list(peers), best_bounds(peers, speeds, bounds, model)
    lines = [f"# The CPU backend compared with other engines, {model.weights}", "",
             f"{bounds[-1]['machine']}; {how}. All engines have the same random weights of the {TITLES[model.shape]} shape. Contexts have 128 tokens. Measured on {datetime.date.today()}.", "",
             f"Figures are tokens per second: the median of {rounds} rounds, with the minimum and the maximum in brackets. In each round, every task ran on one engine after the other.",
             "The limit of decode is the number of streams times the read bandwidth, divided by the bytes of the weights that a step reads. The limit of prefill is the peak of the instructions divided by the operations per token. Both rates are the fastest of the run: of tests between the rounds, or of an engine that was faster.", "",
             "| work | " + " | ".join(names) + " | limit | capstan : best peer | capstan : limit |", "|---|" + "---|" * (len(names) + 3)]
    for title, task in TASKS:
        cells = []
        for name in names:
            values = speeds[name, title]
            cells.append(f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})")
        ours = statistics.median(speeds["capstan", title])
        limit = model.limit(task, limits_of_run)
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {limit:.0f} | {ours / best(title):.2f}× | {100 * ours / limit:.0f} % |")
    lines += ["", f"Limits: {limits_of_run['read_gb_per_s']:.1f} GB/s, {model.peak(limits_of_run):.0f} GFLOP/s or GOP/s. Other processes used at most {100 * max(shares):.0f} % of the machine during a measurement.", ""]
    lines += [f"- {name}: {peer.title}" for name, peer in peers.items()]
    return "\n".join(lines) + "\n"


def medians(peers, speeds, bounds, model):
    best = best_bounds(peers, speeds, bounds, model)
    rows = [{"work": title, "speeds": {name: statistics.median(speeds[name, title]) for name in peers},
             "limit": model.limit(task, best)} for title, task in TASKS]
    return {"peers": {name: peer.title for name, peer in peers.items()}, "rows": rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=list(SHAPES), default="0.5b")
    parser.add_argument("--weights", default="bf16", help="what the peers run, for the title and the limits: bf16, int8, int4 or a GGUF file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path, help="file for the medians, as `capstan bench peers` reads them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="report tokens per second of CPU time, for --threads 1 on a shared machine")
    parser.add_argument("--stop-pid", type=int, help="process to stop during measurements")
    parser.add_argument("peers", nargs="+")
    args = parser.parse_args()
    model = Model(args.shape, args.weights)
    os.environ.update(PEER_THREADS=str(args.threads), PEER_CLOCK="cpu" if args.cpu_time else "wall")
    peers = {name: Peer(command) for name, command in (item.split("=", 1) for item in args.peers)}
    paused = PausedProcess(args.stop_pid)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    speeds, bounds, shares = {}, [], []
    try:
        for round_idx in range(args.rounds + 1):  # round 0 warms up
            for title, task in TASKS:
                for name, peer in peers.items():
                    if round_idx == 0:
                        peer.run({**task, "tokens": 8} if task["op"] == "decode" else task)
                        continue
                    foreign, speed = peer.measure(task, paused, args.cpu_time)
                    print(f"round {round_idx}, {title}, {name}: {speed:.1f} (others {100 * foreign:.0f} %)", file=sys.stderr, flush=True)
                    speeds.setdefault((name, title), []).append(speed)
                    shares.append(foreign)
                if round_idx > 0:
                    if not args.cpu_time:
                        paused.stop()
                    bounds.append(limits())
                    paused.resume()
    finally:
        paused.resume()
        print(f"the --stop-pid process was stopped for {paused.total:.0f} s", file=sys.stderr)
    how = f"{args.threads} thread{'s' if args.threads > 1 else ''}" + (", tokens per second of CPU time" if args.cpu_time else ", pinned")
    text = table(peers, speeds, bounds, args.rounds, shares, how, model)
    print(text)
    if args.out:
        args.out.write_text(text)
    if args.json:
        args.json.write_text(json.dumps(medians(peers, speeds, bounds, model)))
    for peer in peers.values():
        peer.close()


if __name__ == "__main__":
    main()

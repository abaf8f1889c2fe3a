import type { Command } from 'commander';
import { withFlagNames } from '../engine-option-flags';
import { addOfflineBenchFlags, type OfflineBenchFlags, readOfflineBenchFlags } from './offline-flags';
import {
  addLimitsBenchFlags,
  addOpsBenchFlags,
  type LimitsBenchFlags,
  type OpsBenchFlags,
  readLimitsBenchFlags,
  readOpsBenchFlags,
} from './machine-flags';
import { addPeersBenchFlags, type PeersBenchFlags, readPeersBenchFlags } from './peers-flags';
import { addServeBenchFlags, readServeBenchFlags, type ServeBenchFlags } from './serve-flags';

/** Adds `capstan bench …`. @param onExit Receives the exit code. */
export function addBenchCommand(program: Command, onExit: (exitCode: number) => void): void {
  const bench = program
    .command('bench')
    .description('measure a server, the engine without HTTP, its ops, and the machine');
  const add = (name: string, description: string) => bench.command(name).description(description);
  addServeBenchFlags(add('serve', 'send a workload to an OpenAI-compatible server and report latency and throughput'))
    .addHelpText('after', SERVE_HELP)
    .action(async (flags: ServeBenchFlags) => {
      const { serveBench } = await import('../../bench/serve-bench.js');
      onExit(await serveBench(readServeBenchFlags(flags, process.env)));
    });
  addOfflineBenchFlags(add('offline', 'run a fixed set of requests through the library, without HTTP')).action(
    async (model: string | undefined, flags: OfflineBenchFlags) => {
      const { offlineBench } = await import('../../bench/offline-bench.js');
      onExit(await withFlags(() => offlineBench(readOfflineBenchFlags(model, flags))));
    },
  );
  addOpsBenchFlags(add('ops', 'measure each op of the CPU backend, and its share of the limit of the machine'))
    .addHelpText('after', OPS_HELP)
    .action(async (flags: OpsBenchFlags) => {
      const { opsBench } = await import('../../bench/ops-bench.js');
      onExit(await withFlags(() => opsBench(readOpsBenchFlags(flags))));
    });
  addLimitsBenchFlags(add('limits', 'measure how fast this machine reads memory and computes')).action(
    async (flags: LimitsBenchFlags) => {
      const { limitsBench } = await import('../../bench/limits-bench.js');
      onExit(await withFlags(() => limitsBench(readLimitsBenchFlags(flags))));
    },
  );
  addPeersBenchFlags(add('peers', 'compare the engine with llama.cpp and OpenVINO on the same weights'))
    .addHelpText('after', PEERS_HELP)
    .action(async (flags: PeersBenchFlags) => {
      const { peersBench } = await import('../../bench/peers-bench.js');
      onExit(await peersBench(readPeersBenchFlags(flags)));
    });
}

/** Runs a benchmark. Errors of the engine name the flags instead of the options. */
async function withFlags(run: () => number | Promise<number>): Promise<number> {
  try {
    return await run();
  } catch (error) {
    throw withFlagNames(error);
  }
}

const OPS_HELP = `
The weights are random and have the shape of Qwen2.5-0.5B. The limit of an op is
the time to read its bytes or to do its operations, whichever is longer, at the
fastest rate of the same run. No op exceeds it.
`;

const PEERS_HELP = `
The scripts are in a clone of Capstan: benchmarks/peers/README.md says how to
install the peers and how to write the models. The command says what is missing.
Peers that are not installed are left out.
`;

const SERVE_HELP = `
The time to first token is the time from sending a request to the first chunk
with text. Chunks without text do not count. Requests wait in this client only
under --max-concurrency. With --request-rate they are sent on schedule, however
busy the server is. Ctrl-C ends the run and reports the results so far.

Examples:
  capstan bench serve --base-url http://127.0.0.1:8080 --random-input-len 256 --random-output-len 64 --num-prompts 32 --max-concurrency 8 --ignore-eos
  capstan bench serve --port 8080 --request-rate 4 --num-prompts 200 --goodput ttft:500 tpot:50 --result-filename result.json
  capstan bench serve --concurrency 1,2,4,8,16 --num-prompts 64 --report sweep.html
  capstan bench serve --dataset-name prefix_repetition --prefix-repetition-prefix-len 1024 --backend openai-chat
`;

import type { Command } from 'commander';
import { addOfflineBenchFlags, type OfflineBenchFlags, readOfflineBenchFlags } from './offline-flags';
import { addServeBenchFlags, readServeBenchFlags, type ServeBenchFlags } from './serve-flags';

/** Adds `capstan bench …`. @param onExit Receives the exit code. */
export function addBenchCommand(program: Command, onExit: (exitCode: number) => void): void {
  const bench = program.command('bench').description('measure a server, or the engine without HTTP');
  const add = (name: string, description: string) =>
    bench.command(name).description(description).showHelpAfterError(`(see capstan bench ${name} --help)`);
  addServeBenchFlags(add('serve', 'send a workload to an OpenAI-compatible server and report latency and throughput'))
    .addHelpText('after', SERVE_HELP)
    .action(async (flags: ServeBenchFlags) => {
      const { serveBench } = await import('../../bench/serve-bench.js');
      onExit(await serveBench(readServeBenchFlags(flags, process.env)));
    });
  addOfflineBenchFlags(add('offline', 'run a fixed set of requests through the library, without HTTP')).action(
    async (model: string | undefined, flags: OfflineBenchFlags) => {
      const { offlineBench } = await import('../../bench/offline-bench.js');
      onExit(await offlineBench(readOfflineBenchFlags(model, flags)));
    },
  );
}

const SERVE_HELP = `
The time to first token is the time from sending a request to the first chunk
with text. Chunks without text do not count. Requests wait in this client only
under --max-concurrency. With --request-rate they are sent on time, however busy
the server is. Ctrl-C ends the run and reports the results so far.

Examples:
  capstan bench serve --base-url http://127.0.0.1:8080 --random-input-len 256 --random-output-len 64 --num-prompts 32 --max-concurrency 8 --ignore-eos
  capstan bench serve --port 8080 --request-rate 4 --num-prompts 200 --goodput ttft:500 tpot:50 --result-filename result.json
  capstan bench serve --dataset-name prefix_repetition --prefix-repetition-prefix-len 1024 --backend openai-chat
`;

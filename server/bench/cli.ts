import type { Command } from 'commander';
import { addOfflineBenchFlags, type OfflineBenchFlags, readOfflineBenchFlags } from './offline-flags';
import { addServeBenchFlags, readServeBenchFlags, type ServeBenchFlags } from './serve-flags';

/** Mounts `capstan bench …`; `onExit` hears the exit code. */
export function addBenchCommand(program: Command, onExit: (exitCode: number) => void): void {
  const bench = program.command('bench').description('measure a server, or the engine alone');
  const add = (name: string, description: string) =>
    bench
      .command(name)
      .description(description)
      .helpOption('-h, --help', 'print this help')
      .showHelpAfterError(`(capstan bench ${name} --help says more)`);
  addServeBenchFlags(
    add('serve', 'send a workload to any OpenAI-compatible server and report latencies and throughput'),
  )
    .addHelpText('after', SERVE_HELP)
    .action(async (flags: ServeBenchFlags) => {
      const { serveBench } = await import('./serve-bench.js');
      onExit(await serveBench(readServeBenchFlags(flags, process.env)));
    });
  addOfflineBenchFlags(add('offline', 'run a fixed set of requests through the library, without HTTP')).action(
    async (model: string | undefined, flags: OfflineBenchFlags) => {
      const { offlineBench } = await import('./offline-bench.js');
      onExit(await offlineBench(readOfflineBenchFlags(model, flags)));
    },
  );
}

const SERVE_HELP = `
The time to the first token runs from sending a request to its first piece of text; a stream's opening without text does not count. Requests
wait in this client only under --max-concurrency; with --request-rate they are sent on time whatever the server does.
Ctrl-C ends the run and reports what was measured until then.

Examples:
  capstan bench serve --base-url http://127.0.0.1:8080 --random-input-len 256 --random-output-len 64 --num-prompts 32 --max-concurrency 8 --ignore-eos
  capstan bench serve --port 8080 --request-rate 4 --num-prompts 200 --goodput ttft:500 tpot:50 --result-filename result.json
  capstan bench serve --dataset-name prefix_repetition --prefix-repetition-prefix-len 1024 --backend openai-chat
`;

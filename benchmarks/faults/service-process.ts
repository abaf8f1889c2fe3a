/** The service as an operator runs it: in a process that is started again whenever it ends. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import type { Ledger } from './ledger';

const RESTART_AFTER_MS = 1_000;
const STOP_MS = 120_000;
const MAIN = join(__dirname, '../../dist/server/main.js');

export interface ServiceOptions {
  dataDir: string;
  logFile: string;
  /** The folder for temporary files. */
  tmpDir: string;
  port: number;
  databaseUrl: string | undefined;
  ledger: Ledger;
}

export class ServiceProcess {
  readonly #options: ServiceOptions;
  #child: ChildProcess | undefined;
  #isStopping = false;
  #startedMs = 0;

  constructor(options: ServiceOptions) {
    this.#options = options;
    this.#start();
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  get consoleUrl(): string {
    return `http://127.0.0.1:${this.#options.port}`;
  }

  /** How long the current process has run. */
  get ageMs(): number {
    return performance.now() - this.#startedMs;
  }

  get log(): string {
    return readFileSync(this.#options.logFile, 'utf8');
  }

  #start(): void {
    const { dataDir, logFile, tmpDir, port, databaseUrl, ledger } = this.#options;
    const { DATABASE_URL: _url, ...env } = process.env;
    const log = openSync(logFile, 'a', 0o600);
    const args = [MAIN, 'up', '--data-dir', dataDir, '--port', String(port), '--stop-deployments'];
    const child = spawn(process.execPath, args, {
      env: { ...env, TMPDIR: tmpDir, ...(databaseUrl === undefined ? {} : { DATABASE_URL: databaseUrl }) },
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    this.#child = child;
    this.#startedMs = performance.now();
    child.once('exit', (code, signal) => {
      if (this.#isStopping) return;
      ledger.count('ends of the service');
      if (signal !== 'SIGKILL' && !ledger.isExcused('all', performance.now()))
        ledger.problem(`the service ended by itself: code ${code}, signal ${signal}`);
      setTimeout(() => this.#isStopping || this.#start(), RESTART_AFTER_MS);
    });
  }

  kill(): void {
    this.#child?.kill('SIGKILL');
  }

  /** Stops the service and its deployments. */
  async stop(): Promise<void> {
    if (this.#isStopping) return;
    const { ledger } = this.#options;
    this.#isStopping = true;
    const child = this.#child!;
    if (child.exitCode !== null || child.signalCode !== null) return ledger.problem('the service was not running');
    const exited = once(child, 'exit');
    child.kill('SIGTERM');
    const result = await Promise.race([exited, wait(STOP_MS, undefined, { ref: false })]);
    if (result === undefined) {
      ledger.problem(`the service did not stop within ${STOP_MS / 1000} s`);
      child.kill('SIGKILL');
      await exited;
    } else if (result[0] !== 0) ledger.problem(`the service ended with code ${result[0]}, signal ${result[1]}`);
  }

  residentMib(): number {
    const status = readFileSync(`/proc/${this.pid}/status`, 'utf8');
    return Number(/VmRSS:\s+(\d+)/.exec(status)![1]) / 1024;
  }

  numDescriptors(): number {
    return readdirSync(`/proc/${this.pid}/fd`).length;
  }
}

/** Whether a program listens on this port. */
export function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port });
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}

/** Returns a port below the ephemeral ones. It and the next one are free. */
export async function freePorts(): Promise<number> {
  for (let attempt = 0; attempt < 50; attempt++) {
    const port = 10_000 + 2 * Math.floor(Math.random() * 10_000);
    if (!(await isListening(port)) && !(await isListening(port + 1))) return port;
  }
  throw new Error('expected two free ports between 10000 and 30000, found none: end a program that uses them');
}

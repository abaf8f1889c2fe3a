import type { Command } from 'commander';
import { UsageError } from '../../base/usage-error';
import { type CommandIo, PROCESS_IO } from './io';

const DEFAULT_PATH = '/health';
const DEFAULT_URL = `http://127.0.0.1:8080${DEFAULT_PATH}`;
const DEFAULT_TIMEOUT_S = 5;
const MAX_TIMEOUT_S = 3600;
const HELP = `
Examples:
  capstan health
  capstan health http://127.0.0.1:8090/readyz --timeout 2    the deployment service
`;

/** Adds `capstan health`. @param onExit Receives the exit code: 1 if the server is not healthy. */
export function addHealthCommand(program: Command, onExit: (code: number) => void, io: CommandIo = PROCESS_IO): void {
  program
    .command('health')
    .description('check the health of a server: exit code 0 if it returns a status below 300, else 1')
    .addHelpText('after', HELP)
    .argument(
      '[url]',
      `URL of the server, or of its health check if that is not at ${DEFAULT_PATH} (default: ${DEFAULT_URL})`,
    )
    .option('--timeout <seconds>', `maximum time to wait for the response (default: ${DEFAULT_TIMEOUT_S})`)
    .action(async (text: string = DEFAULT_URL, { timeout }: { timeout?: string }) => {
      const url = healthUrl(text);
      const problem = await problemOf(url, parseTimeoutMs(timeout));
      if (problem === undefined) io.out('healthy\n');
      else io.err(`${url}: ${problem}\n`);
      onExit(problem === undefined ? 0 : 1);
    });
}

function healthUrl(text: string): string {
  if (!/^https?:/i.test(text) || !URL.canParse(text))
    throw new UsageError(`url: expected an http or https address such as ${DEFAULT_URL}, got '${text}'`);
  const { pathname, search, origin, username, password } = new URL(text);
  if (username + password !== '')
    throw new UsageError('url: expected an address without a user name and a password, because health needs neither');
  return pathname === '/' && search === '' ? `${origin}${DEFAULT_PATH}` : text;
}

function parseTimeoutMs(text: string | undefined): number {
  const seconds = text === undefined ? DEFAULT_TIMEOUT_S : Number(text);
  if (!(seconds > 0 && seconds <= MAX_TIMEOUT_S)) {
    throw new UsageError(`--timeout: expected seconds up to ${MAX_TIMEOUT_S}, got '${text}'`);
  }
  return seconds * 1000;
}

async function problemOf(url: string, timeoutMs: number): Promise<string | undefined> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(timeoutMs), redirect: 'manual' });
    await response.body?.cancel();
    return response.ok ? undefined : `expected a status below 300, got ${response.status}`;
  } catch (error) {
    const { name, message, cause } = error as Error & { cause?: { message?: string } };
    if (name === 'TimeoutError') return `expected an answer within ${timeoutMs / 1000} s, got none`;
    return `expected an answer, got: ${cause?.message || message}`;
  }
}

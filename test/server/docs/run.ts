/**
 * Runs the commands and the programs of the documentation as a reader would, page by page, with the embedded model in
 * place of others. Ends with an error that names the block which failed:
 *
 *     node -r ./test/oracle/register-ts.cjs test/server/docs/run.ts [PAGE…]
 *
 * It uses the ports of the pages (8080, 8090 and others). As root it runs in namespaces, so that the ports are free and
 * no process stays.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Block, blocksOf, root } from './blocks';
import { CHECKS, SESSIONS, type Session } from './plan';

const folder = join(root, 'build/docs-run');
const TIMEOUT_MS = 540_000;

/** `serve_at PORT COMMAND…` starts a server in place of the one at that port, and waits until it answers. */
const PRELUDE = `
set -euo pipefail
declare -A servers=()
stop() { [ -z "\${servers[$1]:-}" ] || { kill "\${servers[$1]}" 2> /dev/null || true; wait "\${servers[$1]}" 2> /dev/null || true; }; }
stop_all() { local port; for port in "\${!servers[@]}"; do stop "$port"; done; }
trap stop_all EXIT
serve_at() {
  local port=$1 i scheme; shift
  stop "$port"
  "$@" &
  servers[$port]=$!
  for i in $(seq 300); do
    for scheme in http https; do
      case $(command curl -sk -o /dev/null -w '%{http_code}' "$scheme://127.0.0.1:$port/health") in
        200 | 401 | 404) return ;;
      esac
    done
    kill -0 "\${servers[$port]}" || { echo "the server at port $port ended"; return 1; }
    sleep 0.2
  done
  echo "no server at port $port"; return 1
}
curl() { case $1 in -sf) command curl "$@" ;; *) command curl -sS --fail-with-body "$@" ;; esac; }
# For a command that follows a log and never ends.
follow() { local status=0; timeout 3 "$@" || status=$?; [ $status = 124 ]; }
`;

function script(block: Block, session: Session): string | undefined {
  const check = CHECKS[block.page]?.[block.text.split('\n')[0]] ?? CHECKS[block.page]?.['*'];
  if (check !== undefined) return undefined;
  const title = `${block.page}:${block.line}`;
  const where = `printf '\\n==== %s\\n' ${title}`;
  if (block.language === 'js' || block.language === 'ts') {
    if (session.runsPrograms !== true) return undefined;
    const file = `block-${block.line}.mjs`;
    writeFileSync(join(folder, file), block.text);
    return `${where}\nnode ${file}\n`;
  }
  if (!['shell', 'sh', 'bash'].includes(block.language)) return undefined;
  const replaced = Object.entries(session.replace ?? {}).reduce(
    (text, [from, to]) => text.replaceAll(from, to),
    block.text,
  );
  return `${where}\n${replaced
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .map(asServer)
    .join('\n')}\n`;
}

/** A server in the foreground would never end, and one in the background is not ready at once. */
function asServer(line: string): string {
  const [, variables, command] = /^((?:\w+=\S+ )*)((?:npx )?capstan (?:serve|up)\b.*?)\s*(?:&|#.*)?$/.exec(line) ?? [];
  if (command === undefined) return /\s(-f|--follow)$/.test(line) ? `follow ${line}` : line;
  const [, port = /capstan up/.test(command) ? '8090' : '8080'] = /--port (\d+)/.exec(command) ?? [];
  return `serve_at ${port} env ${variables}${command}`;
}

function run(session: Session): void {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(join(folder, 'bin'), { recursive: true });
  mkdirSync(join(folder, 'home/.config/fish/completions'), { recursive: true });
  const shim = join(folder, 'bin/capstan');
  writeFileSync(shim, `#!/bin/sh\nexec '${process.execPath}' '${join(root, 'dist/server/main.js')}' "$@"\n`);
  writeFileSync(join(folder, 'bin/npx'), '#!/bin/sh\nexec "$@"\n');
  for (const name of ['capstan', 'npx']) chmodSync(join(folder, 'bin', name), 0o755);
  symlinkSync(join(root, 'models/demo'), join(folder, 'Qwen2.5-0.5B-Instruct'));
  const parts = session.pages.flatMap((page) => blocksOf(page).map((block) => script(block, session)));
  const text = [
    PRELUDE,
    session.prelude ?? '',
    ...parts.filter((part) => part !== undefined),
    "printf '\\n==== done\\n'",
  ].join('\n');
  const inner = join(folder, 'run.sh');
  writeFileSync(inner, text);
  const isolated =
    process.getuid?.() === 0
      ? [
          'unshare',
          '--net',
          '--pid',
          '--fork',
          '--kill-child',
          '--mount-proc',
          'bash',
          '-c',
          'ip link set lo up && exec bash "$0"',
        ]
      : ['bash'];
  const { status, stdout, stderr } = spawnSync(isolated[0], [...isolated.slice(1), inner], {
    cwd: folder,
    encoding: 'utf8',
    timeout: TIMEOUT_MS,
    maxBuffer: 1 << 28,
    env: { ...process.env, PATH: `${join(folder, 'bin')}:${process.env.PATH}`, HOME: join(folder, 'home') },
  });
  const reached = stdout.match(/^==== .*$/gm) ?? [];
  const pages = session.pages.join(', ');
  if (status === 0 && reached.at(-1) === '==== done') {
    console.log(`${pages}: ${reached.length - 1} blocks ran`);
    return;
  }
  console.error(`${pages}: failed after ${reached.at(-1) ?? 'the start'} (exit code ${status})`);
  console.error(`${stdout.slice(-3000)}\n${stderr.slice(-3000)}`);
  process.exitCode = 1;
}

const chosen = process.argv.slice(2);
for (const session of SESSIONS)
  if (chosen.length === 0 || session.pages.some((page) => chosen.includes(page))) run(session);

// The model of agents.ts: it repairs sum.js with the tools of Codex or of Claude Code. The prompt shows what it has done.
'use strict';

const { join } = require('node:path');

const call = (name, args) => `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
const CHECK = 'node check.js';
const PATCH = `*** Begin Patch
*** Update File: sum.js
@@
-module.exports = (a, b) => a - b;
+module.exports = (a, b) => a + b;
*** End Patch`;
const find = call('mcp__docs__find', { query: 'sums' });

/** @param hasPatchTool Without one, Codex applies patches as a command. */
const codex = (hasPatchTool) => [
  `<think>\nFirst I look.\n</think>\n\nI look.\n${call('exec_command', { cmd: CHECK })}\n${call('exec_command', { cmd: 'cat sum.js' })}`,
  find,
  hasPatchTool
    ? call('apply_patch', { input: PATCH })
    : call('exec_command', { cmd: `apply_patch <<'EOF'\n${PATCH}\nEOF` }),
  call('exec_command', { cmd: CHECK }),
];

function claudeCode(folder) {
  const file = join(folder, 'sum.js');
  const bash = call('Bash', { command: CHECK, description: 'Run the check' });
  return [
    `<think>\nFirst I look.\n</think>\n\nI look.\n${bash}\n${call('Read', { file_path: file })}`,
    call('ToolSearch', { query: 'select:mcp__docs__find', max_results: 5 }),
    find,
    `It subtracts.\n${call('Edit', { file_path: file, old_string: 'a - b', new_string: 'a + b' })}`,
    bash,
  ];
}

/** Returns the next turn of the model. */
module.exports = (prompt) => {
  const turns = prompt.split('<|im_start|>assistant\n').length - 2;
  const folder = /(?:<cwd>|Primary working directory: )([^\s<]+)/.exec(prompt)?.[1] ?? '';
  const hasTool = (name) => prompt.includes(`"name": "${name}"`);
  const steps = hasTool('exec_command') ? codex(hasTool('apply_patch')) : claudeCode(folder);
  if (turns < steps.length) return steps[turns];
  const results = [...prompt.matchAll(/<tool_response>(.*?)<\/tool_response>/gs)].map(([, result]) => result);
  const isDone = results.at(-1)?.includes('all good') && results.some((result) => result.includes('A page about sums'));
  return isDone ? 'The sum is right now.' : `I give up: ${JSON.stringify(results)}`;
};

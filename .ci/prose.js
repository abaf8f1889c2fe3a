// Fails on phrases that make prose hard to read, in comments, strings, names and documentation.
// Run it on everything with `npm run lint`, or on some paths with `node .ci/prose.js server/http docs`.
'use strict';

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);

/** A phrase and what to write instead. */
const BANNED = [
  [/\bwho(m|se)?ever\b/i, 'name the person: the caller, the client, the user'],
  [/\bof (whose|which|whom)\b/i, 'start a new sentence'],
  [/\bsuch (a|an) one\b/i, 'repeat the noun'],
  [/\bby and by\b/i, 'later, asynchronously'],
  [/\bwhat comes\b/i, 'name the thing'],
  [/\bfor want of\b/i, 'without, because there is no'],
  [/\bwhom\b/i, 'rewrite with a subject and a verb'],
  [/\b(gives?|gave|given|giving) back\b/i, 'returns, releases, frees'],
  [/\b(tells?|told|telling)\b/i, 'returns, reports, says which field'],
  [/\bgo(es|ing)? on (from|with|until|as)\b/i, 'continues, keeps'],
  [/\bas far as\b/i, 'up to, if'],
  [/\bno (more|less|fewer|longer) than\b/i, 'at most, at least'],
  [/\bfor (it|they|he|she|there) (is|are|has|have|was|were)\b/i, 'because'],
  [/\b(is|are|was|were|be) (not )?whole\b/i, 'complete'],
  [/\bcomes? to rest\b/i, 'settles, stops changing'],
  [/\ball the same\b/i, 'still, anyway'],
  [/\b(what|that which) (it|they) (is|are) (asked|told)\b/i, 'name the request'],
  [/\bof (theirs|ours|its own|their own)\b/i, 'its own X, a separate X'],
  [/\bof a person's\b|\bof the caller's\b/i, "the caller's X"],
  [/\bno room\b|\broom for\b|\bmakes? room\b/i, 'no space, capacity, no free blocks'],
  [/\bevery one of\b/i, 'each'],
  [/\blet(s)? in\b/i, 'allowed, accepted'],
  [/\bas (one|they) (stands?|lies?)\b/i, 'unchanged'],
  // 'nobody' in quotes is a stored value.
  [/(?<!')\bnobody('s)?\b(?!')/i, 'no caller, no thread'],
  [/\bsomebody('s)?\b/i, 'a user, another process'],
  [/\bthereof|therein|wherein|whereof|thereby|hereby\b/i, 'rewrite'],
  [/\bmany a\b|\bnever yet\b|\bnot yet ever\b/i, 'rewrite'],
  [/\bthe (former|latter)\b/i, 'repeat the noun'],
  [/\bso (it|they) be\b|\bbe it\b/i, 'rewrite'],
  [/\bbeyond (that|it|them)\b/i, 'after, above the limit'],
  [/\bat (the )?(least|most) one\b.{0,20}\bor none\b/i, 'zero or one'],
  [/\b(giveBack|give_back|DeploymentWork|VersionWork|ReplicaWork)\b/, 'use the term of the glossary'],
];

/** Columns of the database keep their names. */
const COLUMNS = /'told'|\brow\.told\b/g;

/** Data, recorded text and generated files are not our prose. */
const SKIPPED = [
  /^package-lock\.json$/,
  /^LICENSE$/,
  /^\.ci\/prose\.js$/,
  /^models\//,
  /^benchmarks\/results\//,
  /^test\/oracle\/(fixtures|templates)\//,
  /^test\/oracle\/.*\.(json|txt)$/,
  /^test\/.*\.(jsonl|pem|sql)$/,
  /^server\/platform\/console\/i18n\/zh-cn\.ts$/,
];
const TEXT =
  /\.(ts|tsx|mts|js|mjs|cjs|css|html|cpp|h|inl|cu|cuh|sh|py|md|yml|yaml|txt)$|^\.ci\/[^.]+$|(^|\/)(Makefile|CMakeLists\.txt)$/;

function listFiles(paths) {
  const args = ['ls-files', '--cached', '--others', '--exclude-standard', '--', ...paths];
  const files = execFileSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 }).split('\n');
  return files.filter((file) => TEXT.test(file) && !SKIPPED.some((pattern) => pattern.test(file)));
}

function findingsIn(file) {
  const absolute = path.join(root, file);
  if (!fs.existsSync(absolute)) return [];
  const lines = fs.readFileSync(absolute, 'utf8').split('\n');
  return lines.flatMap((line, i) =>
    BANNED.flatMap(([pattern, advice]) => {
      const [match] = pattern.exec(line.replace(COLUMNS, '')) ?? [];
      return match === undefined ? [] : [`${file}:${i + 1}: "${match}": ${advice}`];
    }),
  );
}

const findings = listFiles(process.argv.slice(2)).flatMap(findingsIn);
for (const finding of findings) console.error(finding);
if (findings.length > 0) {
  console.error(`${findings.length} banned phrases`);
  process.exitCode = 1;
}

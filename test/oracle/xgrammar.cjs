// Runs the cases on stdin through xgrammar (WebAssembly). Prints per text whether its grammar of the schema or the EBNF
// accepts it, or the error of the case. Runs in its own process, because the package is a browser script that Jest
// cannot load.
'use strict';

const { readFileSync } = require('node:fs');
const Module = require('node:module');
const path = require('node:path');

function loadXgrammar() {
  const file = path.join(__dirname, '../../node_modules/@mlc-ai/web-xgrammar/lib/index.js');
  const loaded = new Module(file);
  loaded.filename = file;
  loaded._compile(readFileSync(file, 'utf8'), file);
  return loaded.exports;
}

// Loads a new instance for each case, because an error makes an instance unusable.
async function judge({ schema, ebnf, texts }) {
  const { Grammar, Testings } = loadXgrammar();
  try {
    // Any whitespace, and additional properties as in JSON Schema.
    const grammar =
      ebnf === undefined
        ? await Grammar.fromJSONSchema(JSON.stringify(schema), true, undefined, undefined, false)
        : await Grammar.fromEBNF(ebnf);
    const verdicts = [];
    for (const { text } of texts) verdicts.push(await Testings.isGrammarAcceptString(grammar, text));
    return { verdicts };
  } catch {
    return { error: messages.join(' ') };
  } finally {
    messages.length = 0;
  }
}

const messages = [];
console.log = console.warn = console.error = (...parts) => messages.push(parts.join(' '));

async function main() {
  const answers = [];
  for (const entry of JSON.parse(readFileSync(0, 'utf8'))) answers.push(await judge(entry));
  process.stdout.write(JSON.stringify(answers));
}

void main();

import { join } from 'node:path';
import ts from 'typescript';
import { type Block, root } from './blocks';

/** Variables that the code of a page takes from the program around it. */
const GLOBALS = `
import type * as capstan from 'capstan';
import type * as server from 'capstan/server';
import type { Readable as NodeReadable } from 'node:stream';
import type { z as zod } from 'zod';
declare global {
  const engine: capstan.Engine;
  const Engine: typeof capstan.Engine;
  const handler: server.Handler;
  const messages: capstan.ChatMessage[];
  const tools: capstan.Tool[];
  const text: string;
  const texts: string[];
  const veryLongText: string;
  const z: typeof zod;
  const Readable: typeof NodeReadable;
  // Its package is not installed here.
  const app: any;
}
`;
/** Packages that are not installed here. test/clients/providers.sh runs the programs that use them. */
const ABSENT = "declare module 'ai';";

/** Errors that JavaScript does not have: a text where a type lists texts, and a value that may be undefined. */
const NOT_IN_JAVASCRIPT = new Set([2322, 2345, 2532, 18048]);

const OPTIONS: ts.CompilerOptions = {
  target: ts.ScriptTarget.ES2022,
  lib: ['lib.es2023.d.ts', 'lib.esnext.disposable.d.ts'],
  module: ts.ModuleKind.Node16,
  moduleResolution: ts.ModuleResolutionKind.Node16,
  types: ['node'],
  strict: true,
  // The pages show JavaScript: parameters have no types.
  noImplicitAny: false,
  skipLibCheck: true,
  noEmit: true,
  paths: {
    capstan: [join(root, 'ts/index.ts')],
    'capstan/server': [join(root, 'server/index.ts')],
    'capstan/ai-sdk': [join(root, 'ts/ai-sdk/index.ts')],
    'capstan/langchain': [join(root, 'ts/langchain/index.ts')],
  },
};

/** Returns the errors of the blocks as modules: page, line and message. */
export function typeErrors(blocks: readonly Block[]): string[] {
  const folder = join(root, 'test/server/docs/virtual');
  const sources = new Map([
    [join(folder, 'globals.mts'), GLOBALS],
    [join(folder, 'absent.d.mts'), ABSENT],
    ...blocks.map(({ text }, i) => [join(folder, `block-${i}.mts`), `${text}\nexport {};\n`] as [string, string]),
  ]);
  const host = ts.createCompilerHost(OPTIONS);
  host.fileExists = (file) => sources.has(file) || ts.sys.fileExists(file);
  host.readFile = (file) => sources.get(file) ?? ts.sys.readFile(file);
  const program = ts.createProgram([...sources.keys()], OPTIONS, host);
  return [...sources.keys()].flatMap((file, i) => {
    const source = program.getSourceFile(file)!;
    const found = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
    const block = blocks[i - 2] as Block | undefined;
    const counted = found.filter(({ code }) => block?.language !== 'js' || !NOT_IN_JAVASCRIPT.has(code));
    return counted.map(({ messageText, start = 0 }) => {
      const line = source.getLineAndCharacterOfPosition(start).line + (block?.line ?? 1);
      return `${block?.page ?? file}:${line}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`;
    });
  });
}

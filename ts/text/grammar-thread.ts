/** The thread that builds grammars. `parseGrammar` starts it. */
import { parentPort } from 'node:worker_threads';
import { answerCalls } from '../thread-calls';
import { toThreadError } from '../thread-error';
import { parseGrammarHere } from './grammar-parser';

if (parentPort !== null)
  answerCalls(parentPort, {
    run: (_method, [json]) => parseGrammarHere(json as string),
    toError: toThreadError,
  });

import type { CallContext } from './call-context';
import type { ChatOptions } from './chat';
import { checkEngine, checkObject } from './checks';
import type { Engine } from './engine';
import { CapstanError } from './errors';
import type { GenerationResult, Usage } from './events';
import { type AnySchema, parseValue, type SchemaValue, toJsonSchema } from './standard-schema';
import type { Messages } from './text/text-service';

/** Options of {@link generateObject}: those of a chat, and the schema. */
export interface GenerateObjectOptions<S extends AnySchema>
  extends Omit<ChatOptions, 'structuredOutput' | 'tools' | 'toolChoice' | 'parallelToolCalls' | 'n'>, CallContext {
  /** Constrains the text token by token, validates the value and types it. */
  schema: S;
}

/** A value that matches a schema. */
export interface GeneratedObject<T> {
  /** The parsed and validated value. */
  object: T;
  /** Present if the model reasoned. */
  reasoning?: string;
  /** Tokens and times of the call. */
  usage: Usage;
  /** The call that wrote the value. */
  result: GenerationResult;
}

/**
 * Generates a value of a schema: a grammar constrains the text, which is then parsed, validated and typed. The model
 * does not see the schema, so the messages should say what to write.
 * @param input The conversation, or the text of a user message.
 * @throws CapstanError `invalid_argument` for a schema that is not supported, `invalid_output` if the text ends early
 *   or a rule fails that JSON Schema lacks, or any error of {@link Engine.chat}.
 */
export async function generateObject<S extends AnySchema>(
  engine: Engine,
  input: string | Messages,
  options: GenerateObjectOptions<S>,
): Promise<GeneratedObject<SchemaValue<S>>> {
  checkEngine(engine);
  const { schema, ...chat } = checkObject('options', options) as unknown as GenerateObjectOptions<S>;
  const messages = typeof input === 'string' ? [{ role: 'user' as const, content: input }] : input;
  const structuredOutput = { type: 'json' as const, schema: toJsonSchema('schema', schema) };
  const result = await engine.chat(messages, { ...chat, structuredOutput }).result();
  const { text, reasoning, finishReason } = result.choices[0];
  if (finishReason === 'length')
    throw new CapstanError(
      'invalid_output',
      `The value is incomplete: it ended after ${result.usage.completionTokens} tokens. Raise maxTokens, limit texts ` +
        'and arrays in the schema, or load the model with a longer context',
    );
  return {
    object: await parseValue(schema, text),
    ...(reasoning === undefined ? {} : { reasoning }),
    usage: result.usage,
    result,
  };
}

/** Types of the library, checked by `tsc` in `npm run lint`. */
import { z } from 'zod';
import {
  type ChatEvent,
  type ChatSession,
  defineTool,
  type Engine,
  type GenerateEvent,
  generateObject,
  type Generation,
  runTools,
  type SchemaValue,
  type ToolRunResult,
} from '../../ts';

/** Compiles only if the types are equal. */
function same<A>() {
  return <B>(_value: [A] extends [B] ? ([B] extends [A] ? B : never) : never): void => {};
}

/** Only compiled. */
export async function check(engine: Engine, session: ChatSession): Promise<void> {
  const schema = z.object({ name: z.string(), born: z.iso.date().transform((text) => new Date(text)) });
  const { object } = await generateObject(engine, 'x', { schema });
  same<{ name: string; born: Date }>()(object);
  const { object: unknown } = await generateObject(engine, 'x', { schema: { type: 'object' } });
  same<unknown>()(unknown);
  // @ts-expect-error structuredOutput is set by the schema.
  await generateObject(engine, 'x', { schema, structuredOutput: { type: 'json' } });

  const typed = defineTool({
    input: z.object({ city: z.string(), days: z.number().default(1) }),
    execute: ({ city, days }, { signal, callId }) => {
      same<string>()(city);
      same<number>()(days);
      same<AbortSignal>()(signal);
      same<string>()(callId);
      return Promise.resolve(days);
    },
  });
  same<ToolRunResult>()(await runTools(engine, 'x', { tools: { typed }, maxSteps: 2 }).result());
  // @ts-expect-error A tool has a function.
  runTools(engine, 'x', { tools: { broken: { description: 'x' } } });

  same<Generation<ChatEvent>>()(session.send('x'));
  same<Generation<GenerateEvent>>()(engine.generate('x', { signal: AbortSignal.abort(), requestId: 'a' }));
  same<AsyncIterable<string>>()(engine.chat([{ role: 'user', content: 'x' }]).textStream);
  same<Promise<Response>>()(engine.chat({ json: '[]' }).toResponse({ format: 'sse' }));
  // @ts-expect-error Not a format.
  engine.generate('x').toReadableStream('xml');
  same<number>()(0 as SchemaValue<z.ZodNumber>);
}

test('a schema describes the type of its values', () => {
  const schema = z.number();
  const value: SchemaValue<typeof schema> = 1;
  expect(schema.parse(value)).toBe(1);
});

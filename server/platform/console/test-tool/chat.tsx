import { useEffect, useRef, useState } from 'preact/hooks';
import type { Deployment } from '../../api/objects';
import { describeProblem } from '../api/describe';
import { toProblem } from '../api/problem';
import { formatMs, formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { Button } from '../ui/button';
import { TextArea, TextField } from '../ui/field';
import { Card } from '../ui/page';
import { Empty } from '../ui/state';
import { chatDelta, EMPTY_RESPONSE, type TestResponse } from './response-reader';
import { KeyChoice } from './key-choice';
import type { RequestDraft } from './request';
import { errorText, testResponses } from './run';
import { SendButton } from './send-button';

/** Pieces of a shorter answer arrive together, so their times say nothing about its speed. */
const MIN_TIMED_MS = 50;

interface Message {
  role: 'user' | 'assistant';
  text: string;
  reasoning?: string;
  isFailed?: boolean;
  meta?: string;
}

interface Settings {
  model: string;
  system: string;
  temperature: string;
  maxTokens: string;
  auth: 'none' | 'key';
  key: string;
}

/** A conversation with the deployment through the gateway. */
export function Chat({ of, model }: { of: Deployment; model: string }) {
  const [settings, setSettings] = useState<Settings>({
    model,
    system: '',
    temperature: '',
    maxTokens: '',
    auth: of.access_control ? 'key' : 'none',
    key: '',
  });
  const [messages, setMessages] = useState<readonly Message[]>([]);
  const [text, setText] = useState('');
  const [isRunning, setRunning] = useState(false);
  const [isTried, setTried] = useState(false);
  const lacksKey = settings.auth === 'key' && settings.key.trim() === '';
  const running = useRef<AbortController | null>(null);
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => {
    list.current?.scrollTo(0, list.current.scrollHeight);
  }, [messages]);
  const set = (part: Partial<Settings>) => setSettings({ ...settings, ...part });
  const send = async () => {
    const conversation: Message[] = [
      ...messages.filter(({ isFailed }) => isFailed !== true),
      { role: 'user', text: text.trim() },
    ];
    const controller = new AbortController();
    running.current = controller;
    setText('');
    setRunning(true);
    setMessages([...conversation, { role: 'assistant', text: '' }]);
    const show = (message: Message) => setMessages([...conversation, message]);
    try {
      show(await converse(of, settings, conversation, controller.signal, show));
    } catch (error) {
      const { title, detail } = describeProblem(toProblem(error));
      show(
        controller.signal.aborted
          ? { role: 'assistant', text: t('chat.stopped'), isFailed: true }
          : { role: 'assistant', text: `${title} ${detail}`, isFailed: true },
      );
    } finally {
      setRunning(false);
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (text.trim() === '' || isRunning) return;
    setTried(true);
    if (!lacksKey) void send();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    // Input methods, such as those for Chinese, use Enter to confirm the composed text.
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
  };
  return (
    <div class="split">
      <section class="card" aria-label={t('chat.title')}>
        <div class="chat">
          <div class="chat-messages" ref={list} tabIndex={0} role="log" aria-label={t('chat.messages')}>
            {messages.length === 0 && (
              <Empty level={3} icon="send" title={t('chat.empty')}>
                {t('chat.emptyHint')}
              </Empty>
            )}
            {messages.map((message, i) => (
              <Bubble key={i} of={message} isWriting={isRunning && i === messages.length - 1} />
            ))}
          </div>
          <form class="chat-send" onSubmit={submit}>
            <textarea
              class="input"
              rows={1}
              aria-label={t('chat.message')}
              placeholder={t('chat.placeholder')}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
              onKeyDown={onKeyDown}
            />
            <SendButton
              isRunning={isRunning}
              isDisabled={text.trim() === ''}
              onCancel={() => running.current?.abort()}
            />
          </form>
        </div>
      </section>
      <Card
        title={t('chat.settings')}
        aside={
          <Button isSmall look="quiet" isDisabled={messages.length === 0 || isRunning} onClick={() => setMessages([])}>
            {t('chat.clear')}
          </Button>
        }
      >
        <div class="stack">
          <KeyChoice
            value={settings}
            onChange={set}
            isRestricted={of.access_control}
            {...(isTried && lacksKey ? { error: t('test.error.key') } : {})}
          />
          <TextField label={t('chat.model')} isMono value={settings.model} onInput={(value) => set({ model: value })} />
          <TextArea
            label={t('chat.system')}
            isOptional
            rows={3}
            value={settings.system}
            onInput={(system) => set({ system })}
          />
          <div class="columns">
            <TextField
              label={t('chat.temperature')}
              isOptional
              inputMode="decimal"
              value={settings.temperature}
              onInput={(temperature) => set({ temperature })}
            />
            <TextField
              label={t('chat.maxTokens')}
              isOptional
              inputMode="numeric"
              value={settings.maxTokens}
              onInput={(maxTokens) => set({ maxTokens })}
            />
          </div>
        </div>
      </Card>
    </div>
  );
}

function Bubble({ of: { role, text, reasoning, isFailed, meta }, isWriting }: { of: Message; isWriting: boolean }) {
  return (
    <div class="message" data-role={role} data-failed={isFailed === true || undefined}>
      <span class="visually-hidden">{t(role === 'user' ? 'chat.you' : 'chat.assistant')}: </span>
      {reasoning !== undefined && reasoning !== '' && (
        <details class="disclosure">
          <summary class="small">{t('chat.reasoning')}</summary>
          <div class="soft small">{neutralise(reasoning)}</div>
        </details>
      )}
      {text === '' && isWriting ? '…' : neutralise(text)}
      {meta !== undefined && <div class="message-meta">{meta}</div>}
    </div>
  );
}

async function converse(
  of: Deployment,
  settings: Settings,
  conversation: readonly Message[],
  signal: AbortSignal,
  show: (message: Message) => void,
): Promise<Message> {
  const number = (value: string) =>
    value.trim() === '' || !Number.isFinite(Number(value)) ? undefined : Number(value);
  const system = settings.system.trim() === '' ? [] : [{ role: 'system', content: settings.system }];
  const body = JSON.stringify({
    model: settings.model,
    messages: [...system, ...conversation.map(({ role, text }) => ({ role, content: text }))],
    stream: true,
    stream_options: { include_usage: true },
    temperature: number(settings.temperature),
    max_tokens: number(settings.maxTokens),
  });
  const request: RequestDraft = {
    method: 'POST',
    path: '/v1/chat/completions',
    query: [],
    headers: [],
    bodyType: 'json',
    body,
    auth: settings.auth,
    key: settings.key,
  };
  const message: Message = { role: 'assistant', text: '', reasoning: '' };
  let seen = 0;
  let firstMs: number | null = null;
  let tokens: number | undefined;
  let response: TestResponse = EMPTY_RESPONSE;
  for await (response of testResponses(of, request, signal)) {
    if (!response.isEventStream) continue;
    for (const piece of response.pieces.slice(seen)) {
      const delta = chatDelta(piece.text);
      if (delta.error !== undefined) return { ...message, text: `${message.text}\n${delta.error}`, isFailed: true };
      message.text += delta.text;
      message.reasoning += delta.reasoning;
      if (delta.text + delta.reasoning !== '') firstMs ??= piece.atMs;
      tokens = delta.usage?.completion_tokens ?? tokens;
    }
    seen = response.pieces.length;
    show({ ...message });
  }
  const { status, body: text, error, end, isEventStream } = response;
  if (error !== null) return { ...message, text: `${error.code}: ${error.message}`, isFailed: true };
  if (status === null || status >= 300 || !isEventStream)
    return { ...message, text: `${status ?? ''} ${errorText(text)}`, isFailed: true };
  const totalMs = end?.at_ms ?? null;
  const speed =
    tokens !== undefined && totalMs !== null && firstMs !== null && totalMs - firstMs >= MIN_TIMED_MS && tokens > 1
      ? t('chat.speed', { speed: formatNumber(((tokens - 1) / (totalMs - firstMs)) * 1000, locale(), 1) })
      : undefined;
  const meta = [
    firstMs === null ? undefined : t('chat.first', { time: formatMs(firstMs, locale()) }),
    tokens === undefined ? undefined : t('chat.tokens', { n: tokens }),
    speed,
  ]
    .filter((part) => part !== undefined)
    .join(' · ');
  return { ...message, meta };
}

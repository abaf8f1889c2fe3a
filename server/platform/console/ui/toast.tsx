import { useEffect, useState } from 'preact/hooks';
import { t } from '../i18n';
import { Button } from './button';

interface Toast {
  id: number;
  text: string;
  isBad: boolean;
}

const SHOWN_MS = 6_000;
let nextId = 1;
let toasts: readonly Toast[] = [];
const listeners = new Set<() => void>();

function change(next: readonly Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

/** Shows a short message. It disappears automatically, unless it reports a failure. */
export function toast(text: string, { isBad = false }: { isBad?: boolean } = {}): void {
  const id = nextId++;
  change([...toasts.slice(-3), { id, text, isBad }]);
  if (!isBad) setTimeout(() => change(toasts.filter((other) => other.id !== id)), SHOWN_MS);
}

export function Toasts() {
  const [, setRound] = useState(0);
  useEffect(() => {
    const update = () => setRound((value) => value + 1);
    listeners.add(update);
    return () => {
      listeners.delete(update);
    };
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map(({ id, text, isBad }) => (
        <div key={id} class={isBad ? 'toast toast-bad' : 'toast'}>
          <span class="grow">{text}</span>
          <Button
            look="quiet"
            isSmall
            icon="close"
            label={t('action.dismiss')}
            onClick={() => change(toasts.filter((other) => other.id !== id))}
          />
        </div>
      ))}
    </div>
  );
}

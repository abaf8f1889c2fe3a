import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import { Preferences } from '../app/preferences';
import { Mark } from '../ui/icons';

/** The frame of pages outside the shell, such as the sign-in. */
export function Gate({
  title,
  text,
  children,
}: {
  title: string;
  text?: ComponentChildren;
  children: ComponentChildren;
}) {
  useEffect(() => {
    document.title = `${title} · Capstan`;
  }, [title]);
  return (
    <main class="gate">
      <div class="gate-box">
        <div class="gate-brand">
          <Mark size={34} />
          Capstan
        </div>
        <div class="card">
          <h1>{title}</h1>
          {text !== undefined && <p class="soft">{text}</p>}
          <div class="stack" style={{ marginTop: '20px' }}>
            {children}
          </div>
        </div>
        <Preferences />
      </div>
    </main>
  );
}

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { t } from '../i18n';
import type { CodeEditor, CodeLanguage } from './code-editor';
import { Field } from './field';

/** A field for code. It is a plain text area until the editor has loaded, and stays one if the editor fails to load. */
export function CodeField({
  label,
  hint,
  error,
  isOptional,
  value,
  onInput,
  language,
  rows,
  maxLength,
  placeholder,
}: {
  label: string;
  hint?: string;
  error?: string;
  isOptional?: boolean;
  value: string;
  onInput: (value: string) => void;
  language: CodeLanguage;
  rows: number;
  maxLength?: number;
  placeholder?: string;
}) {
  const host = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const latest = useRef({ value, onInput });
  latest.current = { value, onInput };
  const [editor, setEditor] = useState<CodeEditor | null>(null);
  useEffect(() => {
    let isGone = false;
    let made: CodeEditor | undefined;
    const start = async () => {
      const { createEditor } = await import('./code-editor');
      await compositionEnd(area.current);
      if (isGone || host.current === null) return;
      // A hidden editor cannot measure its lines.
      host.current.hidden = false;
      made = createEditor(host.current, {
        language,
        placeholder,
        maxLength,
        value: latest.current.value,
        onInput: (next) => latest.current.onInput(next),
      });
      if (area.current !== null && area.current === document.activeElement) made.continueFrom(area.current);
      setEditor(made);
    };
    // Without the editor the text area does the same job.
    start().catch(() => undefined);
    return () => {
      isGone = true;
      made?.destroy();
      setEditor(null);
    };
  }, [language, placeholder, maxLength]);
  const name = isOptional === true ? `${label}${t('field.optional')}` : label;
  const description = [hint, error].filter((part) => part !== undefined).join(' ');
  const isInvalid = error !== undefined;
  // A later effect could run after the next key press and restore the older value.
  useLayoutEffect(() => editor?.setValue(value), [editor, value]);
  useEffect(() => editor?.setNames({ label: name, description, isInvalid }), [editor, name, description, isInvalid]);
  return (
    <Field
      label={label}
      hint={hint}
      error={error}
      isOptional={isOptional}
      onLabelClick={editor === null ? undefined : editor.focus}
    >
      {(wiring) => (
        <>
          <div
            ref={host}
            class="code-editor"
            hidden={editor === null}
            data-invalid={isInvalid || undefined}
            style={{ '--rows': rows }}
          />
          {editor === null && (
            <textarea
              ref={area}
              class="input mono"
              rows={rows}
              maxLength={maxLength}
              placeholder={placeholder}
              spellcheck={false}
              {...wiring}
              value={value}
              onInput={(event) => onInput(event.currentTarget.value)}
              onCompositionStart={(event) => (event.currentTarget.dataset.composing = '')}
              onCompositionEnd={(event) => delete event.currentTarget.dataset.composing}
            />
          )}
        </>
      )}
    </Field>
  );
}

/** Waits until no input method is composing text in the area. Replacing the area would lose that text. */
function compositionEnd(area: HTMLTextAreaElement | null): Promise<void> {
  if (area === null || area.dataset.composing === undefined) return Promise.resolve();
  return new Promise((resolve) => area.addEventListener('compositionend', () => resolve(), { once: true }));
}

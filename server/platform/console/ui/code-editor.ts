import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { json } from '@codemirror/lang-json';
import {
  bracketMatching,
  HighlightStyle,
  indentOnInput,
  StreamLanguage,
  syntaxHighlighting,
} from '@codemirror/language';
import { shell } from '@codemirror/legacy-modes/mode/shell';
import { search, searchKeymap } from '@codemirror/search';
import { Compartment, EditorState, type Extension } from '@codemirror/state';
import { EditorView, highlightSpecialChars, keymap, lineNumbers, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { t } from '../i18n';

/** Loaded on demand by `code-field.tsx`. */

export type CodeLanguage = 'shell' | 'json';

export interface EditorOptions {
  language: CodeLanguage;
  value: string;
  placeholder?: string;
  /** In UTF-16 code units. Longer edits are refused, as in a text area. */
  maxLength?: number;
  onInput: (value: string) => void;
}

/** The texts for assistive technology. They are copied, because a label cannot refer into a shadow tree. */
interface EditorNames {
  label: string;
  description: string;
  isInvalid: boolean;
}

export interface CodeEditor {
  setValue: (value: string) => void;
  setNames: (names: EditorNames) => void;
  focus: () => void;
  /** Takes over focus and selection from the plain text area. */
  continueFrom: (area: HTMLTextAreaElement) => void;
  destroy: () => void;
}

/**
 * Creates an editor inside a shadow root of `host`. CodeMirror adds its styles to a shadow root as an adopted style
 * sheet. In a document it would insert a `<style>` element, which the content security policy refuses.
 */
export function createEditor(host: HTMLElement, options: EditorOptions): CodeEditor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' });
  const names = new Compartment();
  // The editor normalizes line ends, so values are compared after that.
  let last = normalize(options.value);
  const onUpdate = EditorView.updateListener.of(({ docChanged, state }) => {
    const value = state.doc.toString();
    if (!docChanged || value === last) return;
    last = value;
    options.onInput(value);
  });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({ doc: last, extensions: [...extensionsOf(options), names.of([]), onUpdate] }),
  });
  return {
    setValue: (next) => {
      const value = normalize(next);
      if (value === view.state.doc.toString()) return;
      last = value;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: value } });
    },
    setNames: ({ label, description, isInvalid }) =>
      view.dispatch({
        effects: names.reconfigure(
          EditorView.contentAttributes.of({
            'aria-label': label,
            ...(description === '' ? {} : { 'aria-description': description }),
            ...(isInvalid ? { 'aria-invalid': 'true' } : {}),
          }),
        ),
      }),
    focus: () => view.focus(),
    continueFrom: ({ selectionStart, selectionEnd }) => {
      const end = view.state.doc.length;
      view.focus();
      view.dispatch({ selection: { anchor: Math.min(selectionStart, end), head: Math.min(selectionEnd, end) } });
    },
    destroy: () => view.destroy(),
  };
}

function normalize(value: string): string {
  return value.replace(/\r\n?/g, '\n');
}

function extensionsOf({ language, placeholder: hint, maxLength }: EditorOptions): Extension[] {
  return [
    lineNumbers(),
    highlightSpecialChars(),
    history(),
    indentOnInput(),
    bracketMatching(),
    search({ top: true }),
    language === 'json' ? json() : StreamLanguage.define(shell),
    syntaxHighlighting(HIGHLIGHT),
    THEME,
    EditorView.lineWrapping,
    EditorState.phrases.of(phrases()),
    // Tab is not bound: it moves the focus, as in every other field.
    keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
    ...(hint === undefined ? [] : [placeholder(hint)]),
    ...(maxLength === undefined ? [] : [limitLength(maxLength)]),
  ];
}

function limitLength(maxLength: number): Extension {
  return EditorState.transactionFilter.of((transaction) =>
    transaction.newDoc.length > maxLength && transaction.newDoc.length > transaction.startState.doc.length
      ? []
      : transaction,
  );
}

/** The texts of CodeMirror's search panel, by the English text that CodeMirror looks up. */
function phrases(): Record<string, string> {
  return {
    Find: t('editor.find'),
    Replace: t('editor.replaceWith'),
    next: t('editor.next'),
    previous: t('editor.previous'),
    all: t('editor.selectAll'),
    'match case': t('editor.matchCase'),
    regexp: t('editor.regexp'),
    'by word': t('editor.wholeWords'),
    replace: t('editor.replace'),
    'replace all': t('editor.replaceAll'),
    close: t('action.close'),
    'current match': t('editor.currentMatch'),
    'on line': t('editor.onLine'),
    'Go to line': t('editor.goToLine'),
    go: t('editor.go'),
  };
}

const HIGHLIGHT = HighlightStyle.define([
  { tag: [tags.keyword, tags.bool, tags.null, tags.standard(tags.name)], color: 'var(--plot-3)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--ok)' },
  { tag: tags.number, color: 'var(--warn)' },
  { tag: [tags.propertyName, tags.attributeName], color: 'var(--accent-text)' },
  { tag: [tags.variableName, tags.definition(tags.variableName)], color: 'var(--info)' },
  { tag: [tags.comment, tags.meta], color: 'var(--text-faint)' },
  { tag: tags.invalid, color: 'var(--bad)' },
]);

const THEME = EditorView.theme({
  '&': { backgroundColor: 'transparent', color: 'var(--text)', fontSize: '0.93rem' },
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { maxHeight: '60vh', overflow: 'auto', fontFamily: 'var(--mono)', lineHeight: '1.5' },
  '.cm-content, .cm-gutter': { minHeight: 'calc(var(--rows) * 1.5em + 8px)' },
  '.cm-content': { padding: '4px 0', caretColor: 'var(--text)' },
  '.cm-gutters': {
    borderRight: '1px solid var(--line)',
    backgroundColor: 'var(--surface-sunken)',
    color: 'var(--text-faint)',
  },
  '.cm-placeholder': { color: 'var(--text-faint)', whiteSpace: 'pre-wrap' },
  '.cm-content ::selection, &.cm-focused .cm-content ::selection': { backgroundColor: 'var(--accent-soft)' },
  '&.cm-focused .cm-matchingBracket': { backgroundColor: 'var(--accent-soft)' },
  '&.cm-focused .cm-nonmatchingBracket': { backgroundColor: 'var(--bad-soft)' },
  '.cm-searchMatch': { backgroundColor: 'var(--warn-soft)' },
  '.cm-searchMatch-selected': { outline: '1px solid var(--warn)' },
  '.cm-panels': { backgroundColor: 'var(--surface-sunken)', color: 'var(--text)', fontFamily: 'var(--sans)' },
  '.cm-panels-top': { borderBottom: '1px solid var(--line)' },
  '.cm-panel.cm-search': { padding: '8px 28px 8px 8px' },
  '.cm-panel.cm-search [name=close]': { top: '6px', right: '6px', color: 'inherit', cursor: 'pointer' },
  '.cm-textfield': {
    border: '1px solid var(--line-strong)',
    borderRadius: 'var(--radius-small)',
    backgroundColor: 'var(--surface)',
    color: 'var(--text)',
    fontSize: '0.9rem',
  },
  '.cm-button': {
    border: '1px solid var(--line-strong)',
    borderRadius: 'var(--radius-small)',
    background: 'var(--surface)',
    color: 'var(--text)',
    fontSize: '0.9rem',
  },
});

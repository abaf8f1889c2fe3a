import en, { type MessageKey } from './en';
import { fill, type Values } from './fill';

let messages: Readonly<Record<MessageKey, string>> = en;
let translate: ((text: string) => string) | undefined;

/** Sets the texts of a language. `translateService` translates what the service wrote. */
export function showTexts(
  next: Readonly<Record<MessageKey, string>>,
  translateService?: (text: string) => string,
): void {
  [messages, translate] = [next, translateService];
}

/** The text of a message in the current language. */
export function t(key: MessageKey, values?: Values): string {
  return fill(messages[key], values);
}

/** The text of a key that is built at run time, or undefined if there is no such key. */
export function lookUp(key: string, values?: Values): string | undefined {
  return Object.hasOwn(messages, key) ? fill(messages[key as MessageKey], values) : undefined;
}

/** A text that the service wrote, such as a reason or a note in a log. Unknown texts stay in English. */
export function serviceText(text: string): string {
  return translate?.(text) ?? text;
}

import { ApiError } from 'capstan/internal';
import { FieldScanner, findFields, type JsonField, jsonOf } from './json-fields';

/** Longer names are unknown: a name has at most 100 characters of up to four bytes, and NAME/MODEL twice that. */
const MAX_STRING_BYTES = 1_024;
const QUOTE = 0x22;
const NAMES = new Set(['model']);

/** The value of the field `model`, with its quotes: bytes `start` to `end` of the body. */
export interface ModelField {
  readonly value: string;
  readonly start: number;
  readonly end: number;
}

/** Finds the field `model` of a JSON object that arrives in pieces. The deployment validates everything else. */
export class ModelFieldReader {
  readonly #scanner = new FieldScanner(search());
  #field: ModelField | undefined;

  /**
   * Returns the field once it is complete. Throws an ApiError if the body cannot have one, or has a second one. Give it
   * the pieces behind the field as well.
   */
  take(piece: Buffer): ModelField | undefined {
    this.#scanner.take(piece);
    this.#field ??= fieldOf(this.#scanner);
    return this.#field;
  }
}

/** Returns the field of a complete body. Throws an ApiError. */
export async function findModel(body: Buffer): Promise<ModelField | undefined> {
  return fieldOf(await findFields(body, search()));
}

function search() {
  const rule = new OneModel();
  return {
    names: NAMES,
    notAnObject,
    onKey: (_name: string, isLowerCase: boolean) => rule.check(isLowerCase),
    onValue: (_name: string, byte: number) => {
      if (byte !== QUOTE) throw notAString();
    },
    onLongValue: () => {
      throw tooLong();
    },
  };
}

function fieldOf({ fields, hasEnded }: FieldScanner): ModelField | undefined {
  const field = fields.at(0);
  if (field === undefined) {
    if (hasEnded) throw missing();
    return undefined;
  }
  return { value: nameIn(field), start: field.start, end: field.end };
}

function nameIn({ text }: JsonField): string {
  return jsonOf(text!, notAnObject) as string;
}

/** Servers disagree about which of several fields `model` counts, and some ignore the case of letters. */
export class OneModel {
  #hasOne = false;

  /** Call it for each key with this name. Throws an ApiError. */
  check(isLowerCase: boolean): void {
    if (this.#hasOne || !isLowerCase) throw notOneModel();
    this.#hasOne = true;
  }
}

/** For a body that could name another model to its server than to the gateway. */
function notOneModel(): ApiError {
  return new ApiError(
    'invalid_value',
    'model: expected one field with this name, in lower case, because servers disagree about which of several counts',
    { param: 'model' },
  );
}

/** Call it at the end of a body in which no field was found. */
export function missing(): ApiError {
  return new ApiError(
    'missing_required_parameter',
    'model: expected the name of a deployment, for example "model": "chat". GET /v1/models lists the names',
    { param: 'model' },
  );
}

function notAnObject(): ApiError {
  return new ApiError('invalid_json', 'The body is not valid JSON: expected an object with the field "model"');
}

function tooLong(): ApiError {
  return new ApiError(
    'model_not_found',
    `model: expected the name of a deployment, got more than ${MAX_STRING_BYTES} bytes. GET /v1/models lists the names`,
    { param: 'model' },
  );
}

function notAString(): ApiError {
  return new ApiError('invalid_type', 'model: expected a string with the name of a deployment', { param: 'model' });
}

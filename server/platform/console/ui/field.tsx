import type { ComponentChildren } from 'preact';
import { useId } from 'preact/hooks';
import { t } from '../i18n';

interface FieldProps {
  label: ComponentChildren;
  hint?: ComponentChildren;
  error?: string;
  isOptional?: boolean;
}

interface Wiring {
  id: string;
  'aria-describedby'?: string;
  'aria-invalid'?: 'true';
}

/** A label, a control, a hint and an error message, connected by ids. */
export function Field({
  label,
  hint,
  error,
  isOptional,
  onLabelClick,
  children,
}: FieldProps & {
  /** For a control that a label element cannot refer to. Such a control sets its own accessible name. */
  onLabelClick?: () => void;
  children: (wiring: Wiring) => ComponentChildren;
}) {
  const id = useId();
  const described = [hint !== undefined && `${id}-hint`, error !== undefined && `${id}-error`]
    .filter(Boolean)
    .join(' ');
  const labelContent = (
    <>
      {label}
      {isOptional === true && <span class="optional">{t('field.optional')}</span>}
    </>
  );
  return (
    <div class="field">
      {onLabelClick === undefined ? (
        <label for={id}>{labelContent}</label>
      ) : (
        <span class="label" onClick={onLabelClick}>
          {labelContent}
        </span>
      )}
      {children({
        id,
        'aria-describedby': described === '' ? undefined : described,
        'aria-invalid': error === undefined ? undefined : 'true',
      })}
      {hint !== undefined && (
        <div class="hint" id={`${id}-hint`}>
          {hint}
        </div>
      )}
      {error !== undefined && (
        <div class="field-error" id={`${id}-error`}>
          {error}
        </div>
      )}
    </div>
  );
}

interface InputProps extends FieldProps {
  value: string;
  onInput: (value: string) => void;
  type?: 'text' | 'email' | 'password' | 'datetime-local';
  unit?: string;
  isMono?: boolean;
  name?: string;
  placeholder?: string;
  autocomplete?: 'off' | 'name' | 'username' | 'current-password' | 'new-password' | 'one-time-code';
  inputMode?: 'numeric' | 'decimal';
  maxLength?: number;
  required?: boolean;
  autoFocus?: boolean;
}

export function TextField({
  label,
  hint,
  error,
  isOptional,
  value,
  onInput,
  type = 'text',
  unit,
  isMono,
  autocomplete = 'off',
  ...rest
}: InputProps) {
  return (
    <Field label={label} hint={hint} error={error} isOptional={isOptional}>
      {(wiring) => {
        const props = {
          ...rest,
          ...wiring,
          class: isMono === true ? 'input mono' : 'input',
          autocomplete,
          spellcheck: false,
          value,
          type: type as 'text',
          onInput: (event: { currentTarget: HTMLInputElement }) => onInput(event.currentTarget.value),
        };
        const input = <input {...props} />;
        return unit === undefined ? (
          input
        ) : (
          <div class="input-group">
            {input}
            <span class="unit">{unit}</span>
          </div>
        );
      }}
    </Field>
  );
}

export function TextArea({
  label,
  hint,
  error,
  isOptional,
  value,
  onInput,
  isMono,
  rows = 4,
  maxLength,
  placeholder,
}: FieldProps & {
  value: string;
  onInput: (value: string) => void;
  isMono?: boolean;
  rows?: number;
  maxLength?: number;
  placeholder?: string;
}) {
  return (
    <Field label={label} hint={hint} error={error} isOptional={isOptional}>
      {(wiring) => (
        <textarea
          class={isMono === true ? 'input mono' : 'input'}
          rows={rows}
          maxLength={maxLength}
          placeholder={placeholder}
          spellcheck={false}
          {...wiring}
          value={value}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export interface Option {
  value: string;
  label: string;
  isDisabled?: boolean;
}

export function SelectField({
  label,
  hint,
  error,
  isOptional,
  value,
  onChange,
  options,
}: FieldProps & { value: string; onChange: (value: string) => void; options: readonly Option[] }) {
  return (
    <Field label={label} hint={hint} error={error} isOptional={isOptional}>
      {(wiring) => <Select value={value} onChange={onChange} options={options} wiring={wiring} />}
    </Field>
  );
}

export function Select({
  value,
  onChange,
  options,
  label,
  wiring,
}: {
  value: string;
  onChange: (value: string) => void;
  options: readonly Option[];
  label?: string;
  wiring?: Wiring;
}) {
  return (
    <select
      class="input"
      aria-label={label}
      {...wiring}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    >
      {options.map((option) => (
        <option key={option.value} value={option.value} disabled={option.isDisabled}>
          {option.label}
        </option>
      ))}
    </select>
  );
}

export function Checkbox({
  label,
  hint,
  isChecked,
  onChange,
  isDisabled,
}: {
  label: ComponentChildren;
  hint?: ComponentChildren;
  isChecked: boolean;
  onChange: (value: boolean) => void;
  isDisabled?: boolean;
}) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={isChecked}
        disabled={isDisabled}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
      <span>
        {label}
        {hint !== undefined && (
          <span class="hint">
            <br />
            {hint}
          </span>
        )}
      </span>
    </label>
  );
}

/** Radio buttons with a hint for each option. */
export function Choices<V extends string>({
  legend,
  isLegendHidden = false,
  value,
  onChange,
  options,
}: {
  legend: string;
  /** For a card whose title is the legend. */
  isLegendHidden?: boolean;
  value: V;
  onChange: (value: V) => void;
  options: readonly { value: V; label: string; hint: string; isDisabled?: boolean }[];
}) {
  const name = useId();
  return (
    <fieldset class="stack-small">
      <legend class={isLegendHidden ? 'visually-hidden' : 'label'}>{legend}</legend>
      <div class="columns">
        {options.map((option) => (
          <label key={option.value} class="choice">
            <input
              type="radio"
              name={name}
              checked={option.value === value}
              disabled={option.isDisabled}
              onChange={() => onChange(option.value)}
            />
            <span>
              <strong>{option.label}</strong>
              <span class="hint">{option.hint}</span>
            </span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

export function Switch({
  label,
  isOn,
  onChange,
  isDisabled,
}: {
  label: ComponentChildren;
  isOn: boolean;
  onChange: (value: boolean) => void;
  isDisabled?: boolean;
}) {
  return (
    <button
      type="button"
      role="switch"
      class="switch"
      aria-checked={isOn}
      disabled={isDisabled}
      onClick={() => onChange(!isOn)}
    >
      <span class="switch-track" />
      <span>{label}</span>
    </button>
  );
}

export function Segments<V extends string>({
  label,
  value,
  onChange,
  options,
}: {
  label: string;
  value: V;
  onChange: (value: V) => void;
  options: readonly { value: V; label: string }[];
}) {
  return (
    <div class="segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button
          key={option.value}
          type="button"
          aria-pressed={option.value === value}
          onClick={() => onChange(option.value)}
        >
          {option.label}
        </button>
      ))}
    </div>
  );
}

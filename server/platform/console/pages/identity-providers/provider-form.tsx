import { useState } from 'preact/hooks';
import type { IdentityProvider } from '../../../api/objects';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { mappingsText, paramsText, parseMappings, parseParams, wordsOf } from '../../format/mappings';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { CopyLine } from '../../ui/copy';
import { Dialog } from '../../ui/dialog';
import { Checkbox, TextArea, TextField } from '../../ui/field';
import { ProblemBanner } from '../../ui/state';

const DEFAULT_RECHECK_MIN = 60;

/** Adds or edits an identity provider. */
export function ProviderDialog({
  edited,
  onClose,
  onDone,
}: {
  edited?: IdentityProvider;
  onClose: () => void;
  onDone: (provider: IdentityProvider) => void;
}) {
  const [draft, setDraft] = useState(() => draftOf(edited));
  const [isSubmitted, setSubmitted] = useState(false);
  const mappings = parseMappings(draft.mappings);
  const params = parseParams(draft.params);
  const minutes = /^\d{1,5}$/.test(draft.minutes.trim()) ? Number(draft.minutes) : undefined;
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const action = useAction(async () => {
    const body = {
      name: draft.name.trim(),
      client_id: draft.clientId.trim(),
      ...(draft.secret === '' ? {} : { client_secret: draft.secret }),
      scopes: wordsOf(draft.scopes),
      groups_claim: draft.claim.trim(),
      mappings,
      authorization_params: params,
      email_domains: wordsOf(draft.domains),
      requires_group: draft.requiresGroup,
      links_by_email: draft.linksByEmail,
      recheck_s: minutes! * 60,
      ...(edited?.own_redirect_uri === false ? { own_redirect_uri: draft.hasOwnRedirect } : {}),
    };
    onDone(
      edited === undefined
        ? await call<IdentityProvider>('POST', '/identity-providers', {
            body: { ...body, issuer: draft.issuer.trim() },
          })
        : await call<IdentityProvider>('PATCH', `/identity-providers/${edited.id}`, { body, ifMatch: edited.rev }),
    );
  });
  const required = [draft.name, draft.issuer, draft.clientId, draft.claim];
  const isReady = required.every((value) => value.trim() !== '') && minutes !== undefined;
  const submit = () => {
    setSubmitted(true);
    if (isReady && mappings !== undefined && params !== undefined) void action.run();
  };
  const missing = (value: string) => (isSubmitted && value.trim() === '' ? t('spec.error.required') : undefined);
  const title = t(edited === undefined ? 'idp.create' : 'idp.edit');
  return (
    <Dialog
      title={title}
      isWide
      onClose={onClose}
      onSubmit={submit}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {edited === undefined ? title : t('action.save')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <p class="soft">{t(edited === undefined ? 'idp.redirectLater' : 'idp.redirectHint')}</p>
      {edited !== undefined && <CopyLine text={edited.redirect_uri} label={t('idp.redirect')} isWrapped />}
      <div class="columns">
        <TextField
          label={t('idp.name')}
          hint={t('idp.nameHint')}
          maxLength={100}
          autoFocus
          value={draft.name}
          onInput={(name) => set({ name })}
          error={missing(draft.name) ?? fieldMessage(action.problem, '/name')}
        />
        <TextField
          label={t('idp.clientId')}
          isMono
          maxLength={1_000}
          value={draft.clientId}
          onInput={(clientId) => set({ clientId })}
          error={missing(draft.clientId) ?? fieldMessage(action.problem, '/client_id')}
        />
      </div>
      {edited === undefined && (
        <TextField
          label={t('idp.issuer')}
          hint={t('idp.issuerHint')}
          isMono
          maxLength={2_000}
          placeholder="https://login.example.com"
          value={draft.issuer}
          onInput={(issuer) => set({ issuer })}
          error={missing(draft.issuer) ?? fieldMessage(action.problem, '/issuer')}
        />
      )}
      <TextField
        label={t('idp.secret')}
        hint={t(edited?.has_client_secret === true ? 'idp.secretKeep' : 'idp.secretHint')}
        type="password"
        autocomplete="new-password"
        isOptional
        maxLength={2_000}
        value={draft.secret}
        onInput={(secret) => set({ secret })}
      />
      <div class="columns">
        <TextField
          label={t('idp.scopes')}
          isMono
          value={draft.scopes}
          onInput={(scopes) => set({ scopes })}
          error={fieldMessage(action.problem, '/scopes')}
        />
        <TextField
          label={t('idp.claim')}
          isMono
          maxLength={200}
          value={draft.claim}
          onInput={(claim) => set({ claim })}
          error={missing(draft.claim)}
        />
      </div>
      <TextArea
        label={t('idp.mappings')}
        hint={t('idp.mappingsHint')}
        isOptional
        isMono
        rows={4}
        placeholder="ml-engineers = lab: developer"
        value={draft.mappings}
        onInput={(text) => set({ mappings: text })}
        error={isSubmitted && mappings === undefined ? t('idp.mappingsError') : undefined}
      />
      <div class="stack-small">
        <Checkbox
          label={t('idp.requiresGroup')}
          isChecked={draft.requiresGroup}
          onChange={(requiresGroup) => set({ requiresGroup })}
        />
        <Checkbox
          label={t('idp.links')}
          hint={t('idp.linksHint')}
          isChecked={draft.linksByEmail}
          onChange={(linksByEmail) => set({ linksByEmail })}
        />
        {edited?.own_redirect_uri === false && (
          <Checkbox
            label={t('idp.ownRedirect')}
            hint={t('idp.ownRedirectHint', { uri: `${edited.redirect_uri}/${edited.id}` })}
            isChecked={draft.hasOwnRedirect}
            onChange={(hasOwnRedirect) => set({ hasOwnRedirect })}
          />
        )}
      </div>
      <div class="columns">
        <TextField
          label={t('idp.domains')}
          hint={t('idp.domainsHint')}
          isOptional
          isMono
          placeholder="example.com"
          value={draft.domains}
          onInput={(domains) => set({ domains })}
          error={fieldMessage(action.problem, '/email_domains')}
        />
        <TextField
          label={t('idp.recheck')}
          hint={t('idp.recheckHint')}
          inputMode="numeric"
          unit={t('unit.minutes')}
          value={draft.minutes}
          onInput={(text) => set({ minutes: text })}
          error={
            isSubmitted && minutes === undefined ? t('spec.error.number') : fieldMessage(action.problem, '/recheck_s')
          }
        />
      </div>
      <TextArea
        label={t('idp.params')}
        hint={t('idp.paramsHint')}
        isOptional
        isMono
        rows={2}
        placeholder="prompt=select_account"
        value={draft.params}
        onInput={(text) => set({ params: text })}
        error={isSubmitted && params === undefined ? t('idp.paramsError') : undefined}
      />
    </Dialog>
  );
}

/** Shows what to register at a new provider. */
export function RedirectDialog({ of, onClose }: { of: IdentityProvider; onClose: () => void }) {
  return (
    <Dialog
      title={t('idp.redirect')}
      isWide
      onClose={onClose}
      onSubmit={onClose}
      foot={
        <Button type="submit" look="primary">
          {t('action.close')}
        </Button>
      }
    >
      <p class="soft">{t('idp.redirectHint')}</p>
      <CopyLine text={of.redirect_uri} label={t('idp.redirect')} isWrapped />
    </Dialog>
  );
}

interface Draft {
  name: string;
  issuer: string;
  clientId: string;
  secret: string;
  scopes: string;
  claim: string;
  mappings: string;
  params: string;
  domains: string;
  minutes: string;
  requiresGroup: boolean;
  linksByEmail: boolean;
  hasOwnRedirect: boolean;
}

function draftOf(provider: IdentityProvider | undefined): Draft {
  return {
    name: provider?.name ?? '',
    issuer: provider?.issuer ?? '',
    clientId: provider?.client_id ?? '',
    secret: '',
    scopes: (provider?.scopes ?? ['openid', 'profile', 'email']).join(' '),
    claim: provider?.groups_claim ?? 'groups',
    mappings: mappingsText(provider?.mappings ?? []),
    params: paramsText(provider?.authorization_params ?? {}),
    domains: (provider?.email_domains ?? []).join(' '),
    minutes: String(Math.ceil((provider?.recheck_s ?? DEFAULT_RECHECK_MIN * 60) / 60)),
    requiresGroup: provider?.requires_group ?? false,
    linksByEmail: provider?.links_by_email ?? false,
    hasOwnRedirect: provider?.own_redirect_uri ?? true,
  };
}

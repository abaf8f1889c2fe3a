// A real OpenID Connect provider, oidc-provider, for provider.test.ts. The parent process sets its users by messages.
// The authorization request names the user who signs in as `login_hint`.
import http from 'node:http';
import Provider from 'oidc-provider';

/** Claims by subject. */
let users = {};
let redirectUri;

const server = http.createServer((request, response) => void handle(request, response));
server.listen(0, '127.0.0.1', () => process.send({ issuer: issuer() }));
process.on('message', (message) => {
  if (message.users !== undefined) users = message.users;
  if (message.redirectUri !== undefined) {
    redirectUri = message.redirectUri;
    provider = undefined;
  }
  process.send({ isSet: true });
});
process.on('disconnect', () => process.exit());

const issuer = () => `http://127.0.0.1:${server.address().port}`;
let provider;

async function handle(request, response) {
  provider ??= makeProvider();
  if (!request.url.startsWith('/interaction/')) return provider.callback()(request, response);
  const { params } = await provider.interactionDetails(request, response);
  return provider.interactionFinished(request, response, { login: { accountId: params.login_hint } });
}

function makeProvider() {
  return new Provider(issuer(), {
    clients: [
      {
        client_id: 'capstan',
        client_secret: 'the secret of the client',
        redirect_uris: [redirectUri ?? 'http://console.test:8090/sign-in/callback'],
        post_logout_redirect_uris: ['http://console.test:8090/sign-in'],
        grant_types: ['authorization_code', 'refresh_token'],
      },
    ],
    findAccount: (_ctx, subject) =>
      users[subject] === undefined
        ? undefined
        : { accountId: subject, claims: () => ({ sub: subject, ...users[subject] }) },
    claims: { openid: ['sub'], profile: ['name'], email: ['email', 'email_verified'], groups: ['groups'] },
    features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: true } },
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    pkce: { required: () => true },
    issueRefreshToken: () => true,
    rotateRefreshToken: true,
    // Every client has every consent.
    loadExistingGrant: async (ctx) => {
      const { client, session, provider: own } = ctx.oidc;
      const grant = new own.Grant({ clientId: client.clientId, accountId: session.accountId });
      grant.addOIDCScope('openid profile email groups');
      await grant.save();
      return grant;
    },
    cookies: { keys: ['a test'] },
    ttl: { AccessToken: 3600, IdToken: 3600, RefreshToken: 86400, Session: 86400, Grant: 86400, Interaction: 600 },
  });
}

import { demand, demandRoleChange, may, RIGHTS, type Right, ROLES } from '../../../../server/platform/accounts/roles';

test.each<[Right, string]>([
  ['read', 'viewer developer admin owner'],
  ['deployment.change', 'developer admin owner'],
  ['container.change', 'developer admin owner'],
  ['key.create', 'developer admin owner'],
  ['key.changeOwn', 'developer admin owner'],
  ['key.changeOthers', 'admin owner'],
  ['member.change', 'admin owner'],
  ['policy.change', 'admin owner'],
  ['source.write', 'admin owner'],
  ['webhook.change', 'admin owner'],
  ['audit.read', 'admin owner'],
  ['org.delete', 'owner'],
  ['owner.name', 'owner'],
])('%s: %s', (right, roles) => {
  expect(ROLES.filter((role) => may(role, right)).join(' ')).toBe(roles);
  for (const role of ROLES.filter((candidate) => !may(candidate, right))) {
    expect(() => demand(role, right)).toThrow(
      expect.objectContaining({
        code: 'forbidden',
        message: `this requires the role ${RIGHTS[right]} or higher; your role is ${role}`,
      }) as Error,
    );
  }
});

test('every right is in the table above', () => expect(Object.keys(RIGHTS)).toHaveLength(13));

test('members cannot grant or revoke a role above their own', () => {
  const refused: string[] = [];
  for (const actor of ROLES) {
    for (const from of [null, ...ROLES]) {
      for (const to of [null, ...ROLES]) {
        try {
          demandRoleChange(actor, from, to);
        } catch {
          refused.push(`${actor}:${from}:${to}`);
        }
      }
    }
  }
  const allowed = ROLES.flatMap((actor) =>
    [null, ...ROLES].flatMap((from) => [null, ...ROLES].map((to) => `${actor}:${from}:${to}`)),
  ).filter((change) => !refused.includes(change));
  expect(allowed.filter((change) => change.startsWith('viewer') || change.startsWith('developer'))).toEqual([]);
  expect(allowed.filter((change) => change.startsWith('admin') && change.slice(6).includes('owner'))).toEqual([]);
  expect(allowed.filter((change) => change.startsWith('admin'))).toHaveLength(16);
  expect(allowed.filter((change) => change.startsWith('owner'))).toHaveLength(25);
});

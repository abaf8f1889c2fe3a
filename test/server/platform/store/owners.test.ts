/** Which owners exist: what belongs to others is deleted. */
import { overServices, service, alice } from '../api/suite';

overServices(() => {
  test('users and organizations count until they are deleted', async () => {
    const owner = await service.person('owner@example.com');
    const { body: org } = await owner.post('/api/v1/orgs', { name: 'lab', slug: 'lab' });
    const all = await service.store.readOwnerIds();
    expect(all).toEqual(expect.arrayContaining([alice.userId, owner.userId, org.id]));
    expect((await owner.send('DELETE', `/api/v1/orgs/${org.id}?confirm=lab`)).status).toBe(204);
    expect((await service.store.readOwnerIds()).sort()).toEqual(all.filter((id) => id !== org.id).sort());
  });
});

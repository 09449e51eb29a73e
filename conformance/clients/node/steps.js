// KafkaJS.

const { readFileSync } = require('fs')
const { Kafka, logLevel, CompressionTypes, ConfigResourceTypes } = require('kafkajs')

const [bootstrap, prefix, ...asked] = process.argv.slice(2)
const told = process.env

// A new token from the provider, by client credentials.
const token = async () => {
  const who = Buffer.from(`${told.SASL_USERNAME}:${told.SASL_PASSWORD}`).toString('base64')
  const reply = await fetch(told.TOKEN_ENDPOINT, {
    method: 'POST', headers: { authorization: `Basic ${who}` },
    body: new URLSearchParams({ grant_type: 'client_credentials' }),
  })
  return { value: (await reply.json()).access_token }
}

// How the client comes in, as its environment has it (conformance/security.py).
const security = () => {
  if (!told.SECURITY_PROTOCOL) return {}
  const own = told.SSL_CERTIFICATE && readFileSync(told.SSL_CERTIFICATE)
  const ssl = { ca: [readFileSync(told.SSL_CA)], ...own && { cert: own, key: own } }
  const mechanism = told.SASL_MECHANISM?.toLowerCase()
  if (!mechanism) return { ssl }
  const login = mechanism === 'oauthbearer' ? { oauthBearerProvider: token }
    : { username: told.SASL_USERNAME, password: told.SASL_PASSWORD }
  // As long before its end a login is repeated; the library's own is 10 s, which would be at once.
  return { ssl, sasl: { mechanism, ...login }, reauthenticationThreshold: 3_000 }
}

const kafka = new Kafka({
  clientId: prefix, brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 5 },
  ...security(),
})
const admin = kafka.admin()
const DEADLINE_MS = 40_000
const WRITTEN = Array.from({ length: 100 }, (_, i) => (
  { key: `k${i % 7}`, value: `${i}:${'water'.repeat(8)}` }
))

// What the steps share.

const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

const same = (found, wanted, what) => {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)]
  if (a !== b) throw new Error(`${what}: ${a.slice(0, 80)} instead of ${b.slice(0, 80)}`)
}

const until = async (what, isSo, withinMs = DEADLINE_MS) => {
  const end = Date.now() + withinMs
  while (!await isSo()) {
    if (Date.now() > end) throw new Error(`${what} did not happen within ${withinMs} ms`)
    await pause(50)
  }
}

const topic = async (name, numPartitions = 1) => {
  const made = `${prefix}-${name}`
  await admin.createTopics({ topics: [{ topic: made, numPartitions, replicationFactor: 1 }] })
  return made
}

const partitionsOf = async name => {
  const { topics } = await admin.fetchTopicMetadata({ topics: [name] })
  return topics[0].partitions
}

const write = async (name, messages, settings = {}, sending = {}) => {
  const client = kafka.producer({ allowAutoTopicCreation: false, ...settings })
  await client.connect()
  try {
    return await client.send({ topic: name, messages, ...sending })
  } finally {
    await client.disconnect()
  }
}

// A group member that collects what it reads and knows which partitions it holds.
const member = async (group, name, { fromBeginning = true, ...settings } = {}) => {
  const client = kafka.consumer({
    groupId: `${prefix}-${group}`, maxWaitTimeInMs: 200, heartbeatInterval: 500, ...settings,
  })
  const state = { client, records: [], partitions: [] }
  client.on(client.events.GROUP_JOIN, ({ payload }) => {
    state.partitions = payload.memberAssignment[name] || []
  })
  await client.connect()
  await client.subscribe({ topic: name, fromBeginning })
  await client.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => { state.records.push({ partition, ...message }) },
  })
  return state
}

const read = async (reader, count, withinMs = DEADLINE_MS) => {
  await until(`${count} records`, () => reader.records.length >= count, withinMs)
  return reader.records
}

let readers = 0

const readBack = async (name, count, settings = {}) => {
  const reader = await member(`reader-${readers++}`, name, settings)
  try {
    return await read(reader, count)
  } finally {
    await reader.client.disconnect()
  }
}

const text = data => data === null ? null : data.toString()
const pairs = records => records.map(({ key, value }) => ({ key: text(key), value: text(value) }))
const offsets = records => records.map(({ offset }) => Number(offset))
const count = (from, to) => Array.from({ length: to - from }, (_, i) => from + i)

const writtenIsRead = (name, settings = {}, sending = {}) => async () => {
  const made = await topic(name)
  await write(made, WRITTEN, settings, sending)
  same(pairs(await readBack(made, 100)), WRITTEN, 'records')
}

const skip = reason => async () => { throw Object.assign(new Error(reason), { skipped: true }) }
const onlyGzip = skip('the library has gzip alone; the other codecs are packages of others')

const shares = (members, each) => () => members.every(m => m.partitions.length === each)

const transactional = async name => {
  const client = kafka.producer({
    transactionalId: `${prefix}-${name}`, maxInFlightRequests: 1, idempotent: true,
  })
  await client.connect()
  return client
}

const transact = async (client, name, messages, end) => {
  const transaction = await client.transaction()
  await transaction.send({ topic: name, messages })
  await transaction[end]()
}

const uncommitted = { readUncommitted: true }

// The steps.

const steps = {
  'create-topic': async () => {
    const name = await topic('create', 3)
    same((await partitionsOf(name)).length, 3, 'partitions')
    same(await admin.createTopics({ topics: [{ topic: name, numPartitions: 3 }] }), false,
      'the second creation')
  },
  'metadata': async () => {
    const name = await topic('metadata', 3)
    const { brokers } = await admin.describeCluster()
    same(brokers.length, 1, 'brokers')
    const leaders = (await partitionsOf(name)).map(({ leader }) => leader)
    same(leaders, Array(3).fill(brokers[0].nodeId), 'leaders')
  },
  'produce-none': writtenIsRead('codec-none'),
  'produce-gzip': writtenIsRead('codec-gzip', {}, { compression: CompressionTypes.GZIP }),
  'produce-snappy': onlyGzip,
  'produce-lz4': onlyGzip,
  'produce-zstd': onlyGzip,
  'acks-all': writtenIsRead('acks-all', {}, { acks: -1 }),
  'acks-1': writtenIsRead('acks-1', {}, { acks: 1 }),
  'acks-0': writtenIsRead('acks-0', {}, { acks: 0 }),
  'idempotent': writtenIsRead('idempotent', { idempotent: true, maxInFlightRequests: 1 }),
  'headers': async () => {
    const name = await topic('headers')
    await write(name, [{ value: 'v', headers: { a: ['1', '2'], empty: '' } }])
    const [{ headers }] = await readBack(name, 1)
    same({ a: headers.a.map(text), empty: text(headers.empty) }, { a: ['1', '2'], empty: '' },
      'headers')
  },
  'null-key-value': async () => {
    const name = await topic('nulls')
    const given = [{ key: null, value: 'v' }, { key: 'k', value: null }, { key: '', value: '' }]
    await write(name, given)
    same(pairs(await readBack(name, 3)), given, 'records')
  },
  'large-record': async () => {
    const name = await topic('large')
    const given = [{ key: 'k', value: '0123456789'.repeat(90_000) }]
    await write(name, given)
    const [{ value }] = await readBack(name, 1)
    same(value.toString() === given[0].value, true, 'the record is read back')
  },
  'consume-earliest': async () => {
    const name = await topic('earliest')
    await write(name, WRITTEN)
    same(offsets(await readBack(name, 100)), count(0, 100), 'offsets')
  },
  'consume-latest': async () => {
    const name = await topic('latest')
    await write(name, WRITTEN)
    const reader = await member('latest', name, { fromBeginning: false })
    await until('the assignment', shares([reader], 1))
    // What is written before the reader has found the end is not for it: write until one is.
    await until('a new record', async () => {
      await write(name, [{ key: 'new', value: 'record' }])
      await pause(500)
      return reader.records.length > 0
    })
    await reader.client.disconnect()
    same(offsets(reader.records)[0] >= 100, true, 'only what is new is read')
  },
  'consume-timestamp': async () => {
    const name = await topic('timestamp')
    const began = Date.now() - 60_000
    const messages = count(0, 10).map(i => ({ value: 'v', timestamp: `${began + i * 1000}` }))
    await write(name, messages)
    // Behind the last record the library answers the end of the log.
    for (const [ms, wanted] of [[0, 0], [4_500, 5], [9_000, 9], [9_001, 10]]) {
      const [found] = await admin.fetchTopicOffsetsByTimestamp(name, began + ms)
      same(Number(found.offset), wanted, `offset ${ms} ms after the first`)
    }
  },
  'long-session': async () => {
    const name = await topic('session')
    const reader = await member('session', name)
    const writer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
    await writer.connect()
    const end = Date.now() + 1_000 * Number(told.SESSION_S || 3)
    let sent = 0
    while (Date.now() < end) {
      await writer.send({ topic: name, messages: [{ value: `${sent++}` }] })
      await pause(10)
    }
    await read(reader, sent)
    await writer.disconnect()
    await reader.client.disconnect()
    same(reader.records.map(({ value }) => Number(value)), count(0, sent), 'values')
  },
  'group-one': async () => {
    const name = await topic('one', 3)
    for (const partition of count(0, 3)) {
      await write(name, WRITTEN.slice(0, 10).map(message => ({ ...message, partition })))
    }
    const reader = await member('one', name)
    await read(reader, 30)
    await reader.client.disconnect()
    same(reader.partitions.length, 3, 'partitions')
  },
  'group-resume': async () => {
    const name = await topic('resume')
    await write(name, WRITTEN)
    let reader = await member('resume', name)
    await read(reader, 100)
    await reader.client.commitOffsets([{ topic: name, partition: 0, offset: '40' }])
    await reader.client.disconnect()
    reader = await member('resume', name)
    await read(reader, 60)
    await reader.client.disconnect()
    same(offsets(reader.records), count(40, 100), 'offsets')
  },
  'group-eager': async () => {
    const name = await topic('eager', 4)
    const first = await member('eager', name)
    await until('four partitions for the first', shares([first], 4))
    const second = await member('eager', name)
    await until('two partitions for each', shares([first, second], 2))
    await second.client.disconnect()
    await until('four partitions for the first again', shares([first], 4))
    await first.client.disconnect()
  },
  'txn-commit': async () => {
    const name = await topic('commit')
    const client = await transactional('commit')
    await transact(client, name, WRITTEN.slice(0, 10), 'commit')
    await client.disconnect()
    same(pairs(await readBack(name, 10)), WRITTEN.slice(0, 10), 'records')
  },
  'txn-abort': async () => {
    const name = await topic('abort')
    const client = await transactional('abort')
    await transact(client, name, WRITTEN.slice(0, 5), 'abort')
    await transact(client, name, WRITTEN.slice(0, 5), 'commit')
    await client.disconnect()
    same(offsets(await readBack(name, 5)), count(6, 11), 'committed offsets')
    same(offsets(await readBack(name, 10, uncommitted)), [...count(0, 5), ...count(6, 11)],
      'all offsets')
  },
  'txn-isolation': async () => {
    const name = await topic('isolation')
    await write(name, WRITTEN.slice(0, 3))
    const client = await transactional('isolation')
    const transaction = await client.transaction()
    await transaction.send({ topic: name, messages: WRITTEN.slice(0, 2) })
    await write(name, WRITTEN.slice(0, 1))
    const reader = await member('isolation', name)
    await read(reader, 3)
    await pause(2_000)
    same(offsets(reader.records), [0, 1, 2], 'offsets before the end')
    await transaction.commit()
    await read(reader, 6)
    await reader.client.disconnect()
    await client.disconnect()
    same(offsets(reader.records), count(0, 6), 'offsets after the end')
  },
  'txn-offsets': async () => {
    const name = await topic('offsets')
    const groupId = `${prefix}-txn`
    const client = await transactional('offsets')
    for (const [offset, end] of [['10', 'commit'], ['20', 'abort']]) {
      const transaction = await client.transaction()
      const topics = [{ topic: name, partitions: [{ partition: 0, offset }] }]
      await transaction.sendOffsets({ consumerGroupId: groupId, topics })
      await transaction[end]()
      // Kafka writes the markers after its answer, and the library does not wait for them.
      await until('the committed offset', async () => {
        const [found] = await admin.fetchOffsets({ groupId, topics: [name] })
        return found.partitions[0].offset === '10'
      })
    }
    await client.disconnect()
  },
  'txn-fencing': async () => {
    const name = await topic('fencing')
    const older = await transactional('fencing')
    const transaction = await older.transaction()
    await transaction.send({ topic: name, messages: WRITTEN.slice(0, 1) })
    const newer = await transactional('fencing')
    await transact(newer, name, WRITTEN.slice(0, 1), 'commit')
    const type = await transaction.commit().then(() => 'none', error => error.type || error.cause?.type)
    await newer.disconnect()
    await older.disconnect()
    same(['PRODUCER_FENCED', 'INVALID_PRODUCER_EPOCH'].includes(type), true, `fenced by ${type}`)
    same(offsets(await readBack(name, 1)), [2], 'offsets')
  },
  'delete-topic': async () => {
    const name = await topic('delete')
    await admin.deleteTopics({ topics: [name] })
    await until('the deletion', async () => !(await admin.listTopics()).includes(name))
  },
  'create-partitions': async () => {
    const name = await topic('grow')
    await admin.createPartitions({ topicPartitions: [{ topic: name, count: 3 }] })
    await until('three partitions', async () => (await partitionsOf(name)).length === 3)
  },
  'configs': async () => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: await topic('configs') }
    const configEntries = [{ name: 'retention.ms', value: '123456' }]
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })
    await until('the altered value', async () => {
      const { resources } = await admin.describeConfigs({ resources: [resource] })
      const [entry] = resources[0].configEntries.filter(e => e.configName === 'retention.ms')
      return entry.configValue === '123456'
    })
  },
  'delete-records': async () => {
    const name = await topic('records')
    await write(name, WRITTEN)
    // The library deletes only where it has looked up the leader before.
    same((await admin.fetchTopicOffsets(name))[0].low, '0', 'earliest offset')
    await admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '30' }] })
    same((await admin.fetchTopicOffsets(name))[0].low, '30', 'earliest offset')
  },
  'list-offsets': async () => {
    const name = await topic('list')
    await write(name, WRITTEN)
    const [{ low, high }] = await admin.fetchTopicOffsets(name)
    same([low, high], ['0', '100'], 'earliest and latest')
  },
  'groups': async () => {
    const name = await topic('groups')
    const groupId = `${prefix}-groups`
    await write(name, WRITTEN)
    const reader = await member('groups', name)
    await read(reader, 100)
    await reader.client.commitOffsets([{ topic: name, partition: 0, offset: '100' }])
    const listed = async () => (await admin.listGroups()).groups.some(g => g.groupId === groupId)
    same(await listed(), true, 'the group is listed')
    const { groups: [described] } = await admin.describeGroups([groupId])
    same([described.state, described.members.length], ['Stable', 1], 'state and members')
    await reader.client.disconnect()
    const [found] = await admin.fetchOffsets({ groupId, topics: [name] })
    same(found.partitions[0].offset, '100', 'committed offset')
    await admin.deleteGroups([groupId])
    same(await listed(), false, 'the group is listed')
  },
}

const outcome = async name => {
  if (!steps[name]) return `skip ${name} the library has no such call`
  try {
    await steps[name]()
    return `pass ${name}`
  } catch (error) {
    const reason = String(error.message).replaceAll('\n', ' ')
    return `${error.skipped ? 'skip' : 'fail'} ${name} ${reason}`
  }
}

const main = async () => {
  await admin.connect()
  for (const name of asked) console.log(await outcome(name))
  process.exit(0)
}

main()

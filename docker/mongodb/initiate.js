// A replica set of one member: retryable writes and majority acknowledgement need one.
try {
  rs.status();
} catch (error) {
  rs.initiate({ _id: "rs0", members: [{ _id: 0, host: "mongodb:27017" }] });
}
quit(db.hello().isWritablePrimary ? 0 : 1);

package reference

// HealthCheck has the fields of a health check.
var HealthCheck = Table{
	{Key: "type", Meaning: "how a backend is probed, [see below](#types)", Values: "`tcp`, `http`, `https`, `grpc`, `udp`, `exec`, `none`", Default: "required"},
	{Key: "port", Meaning: "the port to probe", Values: "1 to 65535", Default: "the backend's own"},
	{Key: "interval", Meaning: "the time between two probes; by chance, up to 20 % shorter", Values: "`100ms` to `1h`", Default: "`2s`"},
	{Key: "fast_interval", Meaning: "the interval while the health is in doubt: after a result that contradicts it", Values: "`100ms` to `interval`", Default: "`500ms`, or `interval` if that is shorter"},
	{Key: "timeout", Meaning: "how long one probe may take", Values: "`100ms` to `1m`", Default: "`1s`"},
	{Key: "rise", Meaning: "successes in a row that make an unhealthy backend healthy", Values: "1 to 255", Default: "2"},
	{Key: "fall", Meaning: "failures in a row that make a healthy backend unhealthy", Values: "1 to 255", Default: "3"},
	{Key: "method", Meaning: "http, https: the method", Values: "`GET`, `HEAD`, `OPTIONS`", Default: "`GET`"},
	{Key: "path", Meaning: "http, https: the path, with a query if needed", Values: "up to 1024 bytes", Default: "`/`"},
	{Key: "host", Meaning: "http, https: the `Host` header; https, grpc: also the name in the certificate", Values: "a name", Default: "the address"},
	{Key: "status", Meaning: "http, https: the expected codes", Values: "codes and ranges: `200`, `200-299,404`", Default: "`200-399`"},
	{Key: "body", Meaning: "http, https: a text that the first 64 KiB of the answer must contain; only with `GET`", Values: "up to 1024 bytes", Default: "any"},
	{Key: "tls", Meaning: "grpc: connect with TLS", Values: "`true`, `false`", Default: "`false`"},
	{Key: "skip_verify", Meaning: "https, and grpc with `tls`: accept any certificate", Values: "`true`, `false`", Default: "`false`"},
	{Key: "service", Meaning: "grpc: the service to ask for", Values: "up to 1024 bytes", Default: "the server as a whole"},
	{Key: "send", Meaning: "udp: the datagram; tcp: a text to send after connecting", Values: "up to 1024 bytes", Default: "required for udp; tcp: nothing"},
	{Key: "expect", Meaning: "udp, tcp: what the answer begins with", Values: "up to 1024 bytes", Default: "udp: any answer; tcp: none needed"},
	{Key: "command", Meaning: "exec: the program, by its absolute path, and its arguments", Values: "a list of up to 64 words", Default: "required for exec"},
}

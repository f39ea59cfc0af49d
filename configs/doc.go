// Package configs reads what people write: ironvip.toml and the service files
// of services.d.
//
// In goes a path; out come a Config with every default filled in, or the
// services of each file, and every problem at once, each with its file and
// line, its field and a remedy. Reading is strict (a key nobody reads is an
// error) and bounded (a file over its size limit, a FIFO or a directory is
// refused, never waited for). The package also holds, as plain files, the
// sample configuration, the systemd unit and its sysctl, modules-load and
// sysusers files. It starts no goroutine and watches nothing.
package configs

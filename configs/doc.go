// Package configs reads the configuration: ironvip.toml and the service files of services.d.
//
// Its input is a path. Its output is a Config with every default filled in, or the services of each
// file, and all problems at once, each with its file and line, its field and a hint. Reading is
// strict (an unknown key is an error) and bounded (a file over its size limit, a FIFO or a
// directory is refused without waiting). The package also contains, as plain files, the sample
// configuration, the systemd unit and its sysctl, modules-load and sysusers files. It starts no
// goroutines and watches no files.
package configs

// Package spec is the shape in which people write a service: one struct for
// TOML and JSON, with the field names of docs/services.md.
//
// In goes what was written; Build turns it into a vip.Service with every
// default filled in, or tells everything that is wrong with it at once, each
// problem with its field ("ports[0].port") and a remedy. What belongs to a
// later version (health probes) is refused by name. The package uses the standard
// library only and does no I/O.
package spec

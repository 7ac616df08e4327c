//! Measurements that agents send as samples, by their names on the wire.

/// Samples of one AppInst.
pub const INSTANCE: &str = "crm-appinst";
/// Samples of the connections to one AppInst.
pub const CONNECTIONS: &str = "appinst-connections";
/// Samples of a whole ClusterInst.
pub const CLUSTER: &str = "crm-cluster";
/// Samples of a cloudlet.
pub const CLOUDLET: &str = "cloudlet-utilization";

/// Values in those samples.
pub mod value {
    /// Share of one core of an AppInst, of all that it may use of a ClusterInst; percent.
    pub const CPU: &str = "cpu";
    /// Memory: bytes of an AppInst, percent of a ClusterInst.
    pub const MEMORY: &str = "mem";
    /// Bytes on disk.
    pub const DISK: &str = "disk";
    /// Bytes sent to the network.
    pub const SENT: &str = "sendBytes";
    /// Bytes received from the network.
    pub const RECEIVED: &str = "recvBytes";
    /// Connections at public ports of a ClusterInst.
    pub const TCP_CONNECTIONS: &str = "tcpConns";
    /// Connections that are open.
    pub const ACTIVE: &str = "active";
    /// Connections so far.
    pub const TOTAL: &str = "total";
    /// Cores in use on a cloudlet.
    pub const CORES_USED: &str = "vCpuUsed";
    /// Cores of a cloudlet.
    pub const CORES: &str = "vCpuMax";
    /// Megabytes of memory in use on a cloudlet.
    pub const MEMORY_USED: &str = "memUsed";
    /// Megabytes of memory of a cloudlet.
    pub const MEMORY_MAX: &str = "memMax";
    /// Gigabytes of disk of a cloudlet.
    pub const DISK_MAX: &str = "diskMax";
    /// AppInsts that run on a cloudlet.
    pub const INSTANCES: &str = "appInsts";
}

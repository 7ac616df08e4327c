//! `proto.VGService`.

use futures::{StreamExt, stream::BoxStream};
use selvage_api::proto::{
    Empty, GetFreeBytesRequest, GetFreeBytesResponse, GetLvListRequest, GetLvListResponse,
    LogicalVolume, ThinPoolItem, WatchItem, WatchResponse,
    vg_service_server::{VgService, VgServiceServer},
};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::GIB;
use crate::{Capacity, Volumes};

pub(crate) struct VgApi {
    volumes: Volumes,
    /// Ends streams when the process ends.
    stop: CancellationToken,
}

impl VgApi {
    pub(crate) fn service(volumes: Volumes, stop: CancellationToken) -> VgServiceServer<Self> {
        VgServiceServer::new(Self { volumes, stop })
    }
}

#[tonic::async_trait]
impl VgService for VgApi {
    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn get_lv_list(
        &self,
        request: Request<GetLvListRequest>,
    ) -> Result<Response<GetLvListResponse>, Status> {
        let classes = self.volumes.classes();
        let class = classes.find(&request.into_inner().device_class)?;
        let group = self.volumes.group(&class.volume_group)?;
        let listed = group.volumes.values().filter(|volume| class.holds(volume));
        // Whoever finds a volume here adopts it: those that are not complete
        // are not to be found.
        let complete = listed.filter(|volume| !volume.is_pending());
        let volumes = complete.map(|volume| LogicalVolume {
            name: volume.name.clone(),
            size_gb: volume.size.div_ceil(GIB),
            dev_major: volume.major,
            dev_minor: volume.minor,
            tags: volume.tags.clone(),
            size_bytes: volume.size.cast_signed(),
            path: volume.path.display().to_string(),
        });
        Ok(Response::new(GetLvListResponse { volumes: volumes.collect() }))
    }

    async fn get_free_bytes(
        &self,
        request: Request<GetFreeBytesRequest>,
    ) -> Result<Response<GetFreeBytesResponse>, Status> {
        let free_bytes = self.volumes.free(&request.into_inner().device_class)?;
        Ok(Response::new(GetFreeBytesResponse { free_bytes }))
    }

    async fn watch(&self, _: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        let capacities = WatchStream::new(self.volumes.watch());
        let responses = capacities.map(|capacity| Ok(describe(&capacity)));
        Ok(Response::new(responses.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }
}

fn describe(capacity: &Capacity) -> WatchResponse {
    let items = capacity.classes.iter().map(|class| WatchItem {
        free_bytes: class.free,
        device_class: class.name.clone(),
        size_bytes: class.size,
        thin_pool: class.pool.map(|pool| ThinPoolItem {
            data_percent: percent(pool.used.unwrap_or_default(), pool.size),
            metadata_percent: f64::from(pool.metadata_used.unwrap_or_default()) / 10.0,
            overprovision_bytes: class.free,
            size_bytes: pool.size,
        }),
    });
    WatchResponse { free_bytes: capacity.default_free, items: items.collect() }
}

fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 }
}
